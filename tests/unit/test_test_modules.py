"""How the tests are organised: no test depends on another one, or on fixtures outside its own folder."""

import ast

import pytest

from stackmgr import paths

TESTS = paths.directory("schemas").parent / "tests"
MODULES = sorted(path.relative_to(TESTS).as_posix() for path in TESTS.rglob("*.py"))


def imported_by(module: str) -> set[str]:
    tree = ast.parse((TESTS / module).read_bytes())
    froms = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    names = {f"{node.module}.{alias.name}" for node in froms for alias in node.names}
    plain = [node for node in ast.walk(tree) if isinstance(node, ast.Import)]
    return names | {alias.name for node in plain for alias in node.names}


@pytest.mark.parametrize("module", MODULES)
def test_no_module_imports_a_test_or_a_conftest(module):
    parts = [name.split(".") for name in imported_by(module) if name.startswith("tests.")]
    assert not [name for name in parts if any(p == "conftest" or p.startswith("test_") for p in name[1:])]


@pytest.mark.parametrize("module", [name for name in MODULES if name.startswith("support/")])
def test_support_imports_no_other_folder_of_the_tests(module):
    names = [name for name in imported_by(module) if name.startswith("tests.")]
    assert all(name.startswith("tests.support") for name in names)
