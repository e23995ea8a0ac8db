"""The passes of `tests/run`: nothing that did not run counts as passed."""

import shutil

import pytest
import yaml

from tests import suite

ROOT = suite.TESTS.parent
JOBS = yaml.safe_load((ROOT / ".github/workflows/nightly.yml").read_text())["jobs"].values()
COMMANDS = [step.get("run", "") for job in JOBS for step in job["steps"]]
NIGHTLY = [command for command in COMMANDS if "tests/run" in command]
PASSES = "def test_passes(): pass\n"
TRIALS = {
    "passes": (PASSES, True, "1 passed, 0 failed, 0 errors, 0 skipped"),
    "fails": (PASSES + "def test_fails(): assert 1 == 2", False, "1 passed, 1 failed, 0 errors, 0 skipped"),
    "ends its process": (PASSES + "def test_ends(): __import__('os')._exit(0)", False, "pytest did not come"),
    "cannot be imported": ("import nothing_of_this_name", False, "0 passed, 0 failed, 1 errors, 0 skipped"),
}


@pytest.mark.parametrize(("text", "is_good", "outcome"), TRIALS.values(), ids=TRIALS)
def test_what_does_not_end_is_no_success(tmp_path, capfd, text, is_good, outcome):
    (tmp_path / "test_trial.py").write_text(text)
    options = ("-c", str(ROOT / "pyproject.toml"), f"--rootdir={tmp_path}", str(tmp_path))
    found = suite.run(suite.Pass("trial", options))
    assert (found[0], found[1].startswith(outcome)) == (is_good, True), found
    assert ("assert 1 == 2" in capfd.readouterr().out) == ("assert" in text)


@pytest.mark.parametrize("lost", [False, True])
def test_each_night_runs_what_is_promised(tmp_path, monkeypatch, lost):
    arguments = next(command.split()[1:] for command in NIGHTLY if "--all" in command)
    (tmp_path / "initdb").touch()
    monkeypatch.setenv("POSTGRES_BINARIES", str(tmp_path / "lost" if lost else tmp_path))
    monkeypatch.setattr(shutil, "which", lambda _: "/usr/sbin/pgbouncer")
    monkeypatch.setattr(suite, "run", lambda part: (True, part.title))
    assert suite.main(arguments) == int(lost)
    assert suite.main(["--all"]) == 0
