# shellcheck shell=sh
# Sourced by deploy/dev and tests/run in the root of the checkout: creates .venv, or brings it up to date.

# Install deploy/locks/$1.txt and this checkout into .venv; $2 is roughly how many seconds that takes at first.
bootstrap() {
    python=${PYTHON:-python3}
    if [ -n "${PYTHON:-}" ] || ! is_usable; then
        check_version
    fi
    trap 'echo "interrupted; run $0 again to continue" >&2; exit 130' INT
    if ! is_usable "${PYTHON:+$version}"; then
        echo "creating .venv with Python $version" >&2
        # Beside .venv until everything is installed. (Renaming a finished environment would break its scripts,
        # which contain its path.)
        : >.venv.incomplete
        rm -rf .venv
        "$python" -m venv .venv >.venv.incomplete 2>&1 || { cat .venv.incomplete >&2; exit 1; }
    fi
    if ! state "$1" | cmp -s - ".venv/$1.state"; then
        echo "installing deploy/locks/$1.txt (first run, or something has changed; about $2 s) ..." >&2
        # Two calls: pip takes no checkout together with packages that must have a hash.
        pip --require-hashes --requirement deploy/locks/build.txt --requirement "deploy/locks/$1.txt"
        pip --no-deps --no-build-isolation --editable .
        state "$1" >".venv/$1.state"
    fi
    rm -f .venv.incomplete
    trap - INT
}

# Print what an installation of deploy/locks/$1.txt follows from, and what is installed.
state() {
    pwd
    cat deploy/locks/build.txt "deploy/locks/$1.txt" setup.cfg pyproject.toml stackmgr/__init__.py
    ls -d .venv/lib/python3*/site-packages/*.dist-info 2>/dev/null || :
}

# Whether .venv is complete and runs Python 3.11 or newer, or exactly the version $1 if given.
is_usable() {
    [ ! -e .venv.incomplete ] && .venv/bin/python -c "
import sys, pip
sys.exit(sys.version_info < (3, 11) or '${1:-}' not in ('', '%d.%d' % sys.version_info[:2]))" 2>/dev/null
}

# Set $version to that of $python, or exit with a message.
check_version() {
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || version='not found'
    case $version in
        3.1[1-9] | 3.[2-9][0-9]) return ;;
        [0-9]*) version="Python $version" ;;
    esac
    echo "Python 3.11 or newer is required, but $python is $version: PYTHON=/path/to/python3 $0" >&2
    exit 1
}

pip() {
    .venv/bin/python -m pip install --quiet --disable-pip-version-check "$@" 2>.venv/pip.log && return
    if grep -Eq 'establish a new connection|NameResolutionError|ConnectTimeoutError|ProxyError' .venv/pip.log; then
        echo "the package index cannot be reached, and not all packages are installed yet: see .venv/pip.log" >&2
    else
        cat .venv/pip.log >&2
    fi
    return 1
}
