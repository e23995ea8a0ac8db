# shellcheck shell=sh
# Sourced by deploy/dev, deploy/release and tests/run in the root of the checkout: creates .venv, or brings it up to date.
# deploy/install uses its first part: of the environment, only what is listed here has an effect.

# What finds programs and Python, the user, locale and terminal, how to reach an index, and this project's own variables.
for name in $(env | sed -n 's/^\([A-Za-z_][A-Za-z0-9_]*\)=.*/\1/p'); do
    case $name in
        PATH | PWD | PYTHON | PYENV_* | LD_LIBRARY_PATH | HOME | USER | LOGNAME | SHELL | XDG_* | TMPDIR) ;;
        LANG | LC_* | TERM | NO_COLOR | CI) ;;
        *_proxy | *_PROXY | SSL_CERT_* | *_CA_BUNDLE | NODE_EXTRA_CA_CERTS | NETRC | PIP_* | npm_config_registry) ;;
        STACKMGR_* | WEB_CONCURRENCY | GUNICORN_CMD_ARGS | POSTGRES_BINARIES | CITUS_BINARIES) ;;
        *) command unset "$name" 2>/dev/null || : ;; # SHELLOPTS is read-only
    esac
done
# Programs take "~" for a name where there is no HOME.  git reads no settings of the user or the machine.
export HOME="${HOME:-/}" GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null
export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'

# Run pip of the virtual environment $1.  Of its settings, those have an effect that say where packages come from.
pip_of() {
    "$1/bin/python" -I - "$@" <<'END'
import os, sys
from pip._internal.configuration import Configuration  # `pip config list` obeys quiet, python and log of what it lists
SOURCES = """index-url extra-index-url find-links no-index trusted-host cert client-cert use-feature proxy timeout
default-timeout retries cache-dir no-cache-dir keyring-provider"""
settings = Configuration(isolated=False)
settings.load()
environ = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
for key in (f"{section}.{name}" for section in ("global", "install", ":env:") for name in SOURCES.split()):
    try:  # the last section has precedence
        environ["PIP_" + key.rpartition(".")[2].upper().replace("-", "_")] = settings.get_value(key)
    except Exception:  # pip's own, where it is not set
        pass
environ |= {"PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
os.execve(sys.executable, [sys.executable, "-I", "-m", "pip", *sys.argv[2:]], environ)
END
}

# Install deploy/locks/$1.txt and this checkout into .venv; $2 is roughly how many seconds that takes at first.
bootstrap() {
    python=${PYTHON:-python3}
    if [ -n "${PYTHON:-}" ] || ! is_usable; then
        check_version
    fi
    trap 'echo "interrupted; run $0 again to continue" >&2; exit 130' INT
    if ! is_usable "${PYTHON:+$version}"; then
        echo "creating .venv with Python $version" >&2
        # The file is there until everything is installed. (A finished environment cannot be renamed.)
        { rm -rf .venv && "$python" -I -m venv .venv; } >.venv.incomplete 2>&1 || { cat .venv.incomplete >&2; exit 1; }
    fi
    if [ "$(state "$1")" != "$(cat ".venv/$1.state" 2>/dev/null)" ]; then
        echo "installing deploy/locks/$1.txt (first run, or something has changed; about $2 s) ..." >&2
        # Two calls: pip takes no checkout together with packages that must have a hash.
        pip --require-hashes --requirement deploy/locks/build.txt --requirement "deploy/locks/$1.txt"
        (export HOME="$PWD/.venv"; pip --no-deps --no-build-isolation --editable .) # without settings of distutils
        state "$1" >".venv/$1.state"
    fi
    rm -f .venv.incomplete
    trap - INT
}

# Print what an installation of deploy/locks/$1.txt follows from, and what is installed.
state() {
    pwd
    cat deploy/locks/build.txt "deploy/locks/$1.txt" setup.cfg pyproject.toml stackmgr/__init__.py
    LC_ALL=C ls -d .venv/lib/python3*/site-packages/*.dist-info 2>/dev/null || :
}

# Whether .venv is complete and runs Python 3.11 or newer, or exactly the version $1 if given.
is_usable() {
    [ ! -e .venv.incomplete ] && .venv/bin/python -I -c "
import sys, pip
sys.exit(sys.version_info < (3, 11) or '${1:-}' not in ('', '%d.%d' % sys.version_info[:2]))" 2>/dev/null
}

# Set $version to that of $python, or exit with a message.
check_version() {
    version=$("$python" -I -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || version='not found'
    case $version in
        3.1[1-9] | 3.[2-9][0-9]) return ;;
    esac
    echo "Python 3.11 or newer is required, but $python is $version: PYTHON=/path/to/python3 $0" >&2
    exit 1
}

pip() {
    pip_of .venv install --quiet "$@" 2>.venv/pip.log && return
    if grep -Eq 'establish a new connection|NameResolutionError|ConnectTimeoutError|ProxyError' .venv/pip.log; then
        echo "the package index cannot be reached, and not all packages are installed yet: see .venv/pip.log" >&2
    else
        cat .venv/pip.log >&2
    fi
    return 1
}
