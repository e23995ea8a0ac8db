"""What a worker imports, and how long modules and functions may be."""

import ast
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import stackmgr

PACKAGE = Path(stackmgr.__file__).parent
# What a worker of gunicorn has imported once it serves, with metrics and either verifier.
WORKER = {
    "stackmgr": "admission errors extras limits paths reasons scheduler settings startup threads wsgi",
    "stackmgr.access": "api_keys credentials managers",
    "stackmgr.access.verifiers": "circuit_breaker database http_connection last_use remote unkey",
    "stackmgr.database": "connection conninfo pool retries session session_settings shared_reads statements",
    "stackmgr.http": "app error_handlers health middleware requests resources responses schemas",
    "stackmgr.monitoring": "line_writer logs metrics",
    "stackmgr.server": "body client clients loop queue request response worker",
    "stackmgr.stacks": "configuration cursor eip55 repository whitelist",
}
WORKER_LINES = 6800
PROBE = """
import sys
import stackmgr.server.worker, stackmgr.wsgi
print(*sorted(name for name in sys.modules if name.partition(".")[0] == "stackmgr"))
"""
# A deadline of the wall clock would end, or never end, when that is set.
WALL_CLOCK = re.compile(
    r"\btime\.time(?:_ns)?\(|^from time import .*\btime\b|\.(?:now|utcnow|today)\(", re.MULTILINE
)


def test_a_worker_imports_these_modules_and_none_that_operates(tmp_path):
    environ = os.environ | {
        "STACKMGR_DATABASE_URL": "postgresql://127.0.0.1:1/none",
        "STACKMGR_ADMIN_BIND": "127.0.0.1:9108",
        "STACKMGR_METRICS_DIR": str(tmp_path),
    }
    found = subprocess.check_output([sys.executable, "-c", PROBE], env=environ, text=True).split()
    modules = [f"{package}.{name}" for package, names in WORKER.items() for name in names.split()]
    assert found == sorted([*WORKER, *modules])
    files = (Path(importlib.util.find_spec(name).origin) for name in found)
    assert sum(len(path.read_bytes().splitlines()) for path in files) <= WORKER_LINES


def test_no_module_and_no_function_is_longer_than_contributing_says():
    rules = (PACKAGE.parent / ".github" / "CONTRIBUTING.md").read_text()
    limits = re.search(r"Modules of the package have at most (\d+) lines and functions at most (\d+)", rules)
    module_lines, function_lines = map(int, limits.groups())
    for path in PACKAGE.rglob("*.py"):
        assert len(path.read_bytes().splitlines()) <= module_lines, path
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno - node.lineno < function_lines, f"{path}: {node.name}"


def test_what_waits_reads_the_clock_that_nobody_sets():
    reading = {path for path in PACKAGE.rglob("*.py") if WALL_CLOCK.search(path.read_text())}
    names = {path.relative_to(PACKAGE).as_posix() for path in reading}
    assert {name for name in names if not name.startswith("operate/")} == {
        "access/verifiers/remote.py",  # the date of a Retry-After
        "access/verifiers/unkey.py",  # the end of a rate limit
        "monitoring/logs.py",
        "server/response.py",  # Date
    }
