"""The passes of `tests/run`: nothing that did not run counts as passed."""

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


@pytest.fixture
def run(tmp_path):
    """Return a function that runs a module of tests as a pass, and returns its outcome."""

    def run(text: str, *options: str) -> suite.Outcome:
        (tmp_path / "test_trial.py").write_text(text)
        settings = ("-c", str(suite.TESTS.parent / "pyproject.toml"), f"--rootdir={tmp_path}")
        return suite.run(suite.Pass("trial", (*options, *settings, str(tmp_path))), tmp_path / "reports")

    return run


@pytest.mark.parametrize("options", [(), ("-n", "2", "--dist", "loadfile")])
def test_what_fails_or_never_runs_is_listed(run, options, capsys):
    outcome = run(TESTS, *options)
    assert "assert 1 == 2" in capsys.readouterr().out
    # xdist's replacement of a dead process reports the test that ended it.
    failed = ["test_ends_its_process"] if options else []
    failed += ["test_errs", "test_fails"]
    assert sorted(outcome.failed) == [f"test_trial.py::{name}" for name in failed]
    assert suite.summary([outcome]) == f"1 passed, {len(failed)} failed, 1 skipped, {4 - len(failed)} not run"
    assert any("never ran" in error for error in outcome.errors)


def test_a_module_that_cannot_be_imported_fails(run):
    outcome = run("import nothing_of_this_name")
    assert outcome.failed
    assert outcome.counts()["passed"] == 0
