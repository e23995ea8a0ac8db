"""The passes of `tests/run`: nothing that did not run counts as passed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests import suite

ROOT = suite.TESTS.parent
WORKFLOW = yaml.safe_load((ROOT / ".github/workflows/nightly.yml").read_text())
NIGHTLY = [
    step["run"]
    for job in WORKFLOW["jobs"].values()
    for step in job["steps"]
    if "tests/run" in step.get("run", "")
]
# What `python -m tests.suite` is in the folder of `without_passes`.
REPLACED = f"""#!{sys.executable}
import sys
sys.path.insert(0, "{ROOT}")
from tests import suite
suite.run = lambda part, _: suite.Outcome(part.title)
sys.exit(suite.main(sys.argv[3:]))
"""

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


@pytest.fixture
def without_passes(tmp_path) -> Path:
    """A folder in which tests/run runs no check, and replaces each pass by an empty success."""
    commands = {f".venv/bin/{name}": "#!/bin/sh\n" for name in ("ruff", "mypy", "lint-imports")}
    commands |= {"tests/install_system_packages.sh": "", "deploy/bootstrap.sh": "bootstrap() { :; }\n"}
    commands |= {".venv/bin/python": REPLACED, "bin/pgbouncer": "#!/bin/sh\n", "postgresql/initdb": ""}
    for name, text in commands.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    shutil.copy(ROOT / "tests/run", tmp_path / "tests")
    return tmp_path


@pytest.mark.parametrize("command", NIGHTLY)
@pytest.mark.parametrize("lost", [False, True])
def test_each_night_runs_what_its_workflow_promises(without_passes, command, lost):
    if lost:
        shutil.rmtree(without_passes / "postgresql")
    variables = {name: value for name, value in os.environ.items() if name != "CITUS_BINARIES"}
    variables |= {"CI": "true", "PATH": f"{without_passes}/bin:/bin"}
    variables |= {"POSTGRES_BINARIES": str(without_passes / "postgresql")}
    ran = subprocess.run(
        ["/bin/sh", "-ec", command],
        cwd=without_passes,
        env=variables,
        check=False,
        capture_output=True,
        text=True,
    )
    promised = "--all" in command
    assert ran.returncode == int(lost and promised), ran.stdout + ran.stderr
    assert ("left out tests on Citus" in ran.stdout) == promised
