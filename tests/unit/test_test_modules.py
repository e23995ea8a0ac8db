"""How the tests are organised: no test depends on another one, or on fixtures outside its own folder."""

import re

from stackmgr import paths

TESTS = paths.directory("schemas").parent / "tests"
IMPORT = re.compile(r"^\s*(?:from|import) (tests\.\S+)(?: import (.*))?", re.MULTILINE)


def imported_by(place: str) -> dict[str, str]:
    """Return the modules of the tests that are imported below *place*, each with one that imports it."""
    return {
        f"{module}.{names}": path.as_posix()
        for path in TESTS.glob(f"{place}/*.py")
        for module, names in IMPORT.findall(path.read_text())
    }


def test_no_module_imports_a_test_or_a_conftest():
    imported = imported_by("**")
    assert len(imported) > 100
    assert {name: path for name, path in imported.items() if re.search(r"[. ](conftest|test_)", name)} == {}


def test_support_imports_no_other_folder_of_the_tests():
    imported = imported_by("support")
    assert {name: path for name, path in imported.items() if not name.startswith("tests.support")} == {}
