"""Variables that other people's machines set, and which must not decide what the scripts do."""

# What Python, pip, setuptools, pytest, the checkers, git, tar, grep, curl, OpenSSL, libpq and shells read.
FOREIGN = """
PYTHONPATH PYTHONHOME PYTHONOPTIMIZE PYTHONWARNINGS PYTHONUSERBASE PYTHONSTARTUP VIRTUAL_ENV CONDA_PREFIX
SETUPTOOLS_USE_DISTUTILS SOURCE_DATE_EPOCH DIST_EXTRA_CONFIG PYTEST_ADDOPTS PYTEST_PLUGINS FORCE_COLOR
PYTEST_DISABLE_PLUGIN_AUTOLOAD COLUMNS RUFF_CONFIG MYPYPATH MYPY_CACHE_DIR GIT_DIR GIT_WORK_TREE
GIT_TRACE TAR_OPTIONS GZIP GREP_OPTIONS POSIXLY_CORRECT CDPATH ENV BASH_ENV TZ CURL_HOME OPENSSL_CONF
GIT_INDEX_FILE OPENSSL_MODULES SSLKEYLOGFILE MALLOC_CHECK_ PGHOSTADDR PGPORT PGSERVICE
PGREQUIREAUTH PGCHANNELBINDING PGDATA
""".split()  # noqa: SIM905
# pip's settings that say where packages come from, and others.
SOURCES = {
    "index-url": "https://one.test/simple", "extra-index-url": "\nhttps://two.test/a b\nhttps://three.test",
    "find-links": "/wheels", "trusted-host": "one.test", "cert": "/ca.pem", "proxy": "http://proxy.test",
}  # fmt: skip
PIP = """
user target prefix root constraint requirement require-hashes require-virtualenv no-deps no-binary dry-run
report platform python quiet pre upgrade src
""".split()  # noqa: SIM905


def pip_variables(settings: dict[str, str]) -> dict[str, str]:
    return {f"PIP_{name.upper().replace('-', '_')}": value for name, value in settings.items()}
