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
WORKER = """
stackmgr
stackmgr.access
stackmgr.access.api_keys
stackmgr.access.managers
stackmgr.access.verifiers
stackmgr.access.verifiers.bounded
stackmgr.access.verifiers.circuit_breaker
stackmgr.access.verifiers.database
stackmgr.access.verifiers.last_use
stackmgr.access.verifiers.remote
stackmgr.access.verifiers.reuse
stackmgr.access.verifiers.unkey
stackmgr.capacity
stackmgr.database
stackmgr.database.connection
stackmgr.database.conninfo
stackmgr.database.hot_connections
stackmgr.database.pool
stackmgr.database.retries
stackmgr.database.session
stackmgr.database.session_settings
stackmgr.database.shared_reads
stackmgr.database.statements
stackmgr.errors
stackmgr.extras
stackmgr.http
stackmgr.http.app
stackmgr.http.error_handlers
stackmgr.http.health
stackmgr.http.middleware
stackmgr.http.requests
stackmgr.http.resources
stackmgr.http.responses
stackmgr.http.schemas
stackmgr.limits
stackmgr.monitoring
stackmgr.monitoring.line_writer
stackmgr.monitoring.logs
stackmgr.monitoring.metrics
stackmgr.monitoring.metrics_store
stackmgr.paths
stackmgr.reasons
stackmgr.scheduler
stackmgr.server
stackmgr.server.body
stackmgr.server.connection
stackmgr.server.connections
stackmgr.server.handler
stackmgr.server.listeners
stackmgr.server.memory
stackmgr.server.outbox
stackmgr.server.request
stackmgr.server.response
stackmgr.server.shares
stackmgr.server.worker
stackmgr.settings
stackmgr.stacks
stackmgr.stacks.configuration
stackmgr.stacks.cursor
stackmgr.stacks.eip55
stackmgr.stacks.repository
stackmgr.stacks.whitelist
stackmgr.startup
stackmgr.wsgi
""".split()
WORKER_LINES = 7400
PROBE = """
import sys
import stackmgr.server.worker, stackmgr.wsgi
print(*sorted(name for name in sys.modules if name.partition(".")[0] == "stackmgr"))
"""


def imported(tmp_path: Path) -> list[str]:
    environ = os.environ | {
        "STACKMGR_DATABASE_URL": "postgresql://127.0.0.1:1/none",
        "STACKMGR_ADMIN_BIND": "127.0.0.1:9108",
        "STACKMGR_METRICS_DIR": str(tmp_path),
    }
    ended = subprocess.run(
        [sys.executable, "-c", PROBE], env=environ, capture_output=True, text=True, check=True
    )
    return ended.stdout.split()


def test_a_worker_imports_these_modules_and_none_that_operates(tmp_path):
    found = imported(tmp_path)
    assert found == sorted(WORKER)
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
