"""The passes of `tests/run`: nothing that did not run counts as passed."""

import textwrap

import pytest

from tests import suite

TESTS = """
import os
import pytest

def test_passes(): pass
def test_fails(): assert 1 == 2
@pytest.mark.skip(reason="a reason")
def test_is_skipped(): pass
@pytest.fixture
def broken(): raise OSError
def test_errs(broken): pass
def test_ends_its_process(): os._exit(3)
def test_never_runs(): pass
"""


@pytest.mark.parametrize("options", [(), ("-n", "2", "--dist", "loadfile")])
def test_what_fails_or_never_runs_is_listed(tmp_path, options, capsys):
    file = tmp_path / "test_trial.py"
    file.write_text(textwrap.dedent(TESTS))
    total = suite.Outcome()
    command = ("pytest", *options, "-c", str(suite.TESTS.parent / "pyproject.toml"), f"--rootdir={tmp_path}")
    suite.run(suite.Pass("trial", (*command, str(file))), tmp_path / "reports", total)
    assert "assert 1 == 2" in capsys.readouterr().out
    # xdist's replacement of a dead process reports the test that ended it.
    failed = ["test_ends_its_process"] if options else []
    assert sorted(total.failed) == sorted(
        f"test_trial.py::{name} (trial)" for name in ["test_errs", "test_fails", *failed]
    )
    assert suite.summary(total) == f"1 passed, {2 + len(failed)} failed, 1 skipped, {2 - len(failed)} not run"
    assert any("never ran" in error for error in total.errors)


def test_a_module_that_cannot_be_imported_fails(tmp_path):
    (tmp_path / "test_trial.py").write_text("import nothing_of_this_name")
    total = suite.Outcome()
    suite.run(
        suite.Pass("trial", ("pytest", f"--rootdir={tmp_path}", str(tmp_path))), tmp_path / "reports", total
    )
    assert total.failed
    assert total.passed == 0
