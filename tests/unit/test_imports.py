"""How tests and modules are organised: imports, lengths, clocks."""

import ast
import re
from pathlib import Path

import stackmgr
from stackmgr import paths

PACKAGE = Path(stackmgr.__file__).parent
# A deadline of the wall clock would end, or never end, when that is set.
WALL_CLOCK = re.compile(r"(?m)\btime\.time(?:_ns)?\(|^from time import .*\btime\b|\.(?:now|utcnow|today)\(")
TESTS = paths.directory("schemas").parent / "tests"
IMPORT = re.compile(r"^\s*(?:from|import) (tests\.\S+)(?: import (.*))?", re.MULTILINE)


def test_modules_and_functions_are_short():
    rules = (PACKAGE.parent / ".github" / "CONTRIBUTING.md").read_text()
    limits = re.search(r"Modules of the package have at most (\d+) lines and functions at most (\d+)", rules)
    module_lines, function_lines = map(int, limits.groups())
    for path in PACKAGE.rglob("*.py"):
        assert len(path.read_bytes().splitlines()) <= module_lines, path
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno - node.lineno < function_lines, f"{path}: {node.name}"


def test_waits_use_the_monotonic_clock():
    reading = {path for path in PACKAGE.rglob("*.py") if WALL_CLOCK.search(path.read_text())}
    names = {path.relative_to(PACKAGE).as_posix() for path in reading}
    assert {name for name in names if not name.startswith("operate/")} == {
        "access/verifiers/remote.py",  # the date of a Retry-After
        "access/verifiers/unkey.py",  # the end of a rate limit
        "monitoring/logs.py",
        "server/response.py",  # Date
    }


def imported_by(place: str) -> dict[str, str]:
    return {
        f"{module}.{names}": path.as_posix()
        for path in TESTS.glob(f"{place}/*.py")
        for module, names in IMPORT.findall(path.read_text())
    }


def test_nothing_imports_a_test_or_a_conftest_and_support_no_other_folder():
    imported = imported_by("**")
    assert len(imported) > 100
    assert {name: path for name, path in imported.items() if re.search(r"[. ](conftest|test_)", name)} == {}
    imported = imported_by("support")
    assert {name: path for name, path in imported.items() if not name.startswith("tests.support")} == {}
