"""The commands stay off the request's path, and modules and functions stay short."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import stackmgr

PACKAGE = Path(stackmgr.__file__).parent
PROBE = """
import sys
from stackmgr import wsgi
print(sorted(name for name in sys.modules if name.startswith(("stackmgr.operate", "stackmgr.dev"))))
"""


def imported() -> str:
    environ = os.environ | {"STACKMGR_DATABASE_URL": "postgresql://127.0.0.1:1/none"}
    ended = subprocess.run(
        [sys.executable, "-c", PROBE], env=environ, capture_output=True, text=True, check=True
    )
    return ended.stdout.strip()


def test_the_service_imports_no_command_and_nothing_for_development():
    assert imported() == "[]"


def test_no_module_and_no_function_is_longer_than_contributing_says():
    rules = (PACKAGE.parent / ".github" / "CONTRIBUTING.md").read_text()
    limits = re.search(r"Modules of the package have at most (\d+) lines and functions at most (\d+)", rules)
    module_lines, function_lines = map(int, limits.groups())
    for path in PACKAGE.rglob("*.py"):
        assert len(path.read_bytes().splitlines()) <= module_lines, path
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno - node.lineno < function_lines, f"{path}: {node.name}"
