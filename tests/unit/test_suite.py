"""The passes of `tests/run`: nothing that did not run counts as passed."""

import shutil
import tomllib

import pytest
import yaml

from tests import suite

ROOT = suite.TESTS.parent
JOBS = yaml.safe_load((ROOT / ".github/workflows/nightly.yml").read_text())["jobs"].values()
COMMANDS = [step.get("run", "") for job in JOBS for step in job["steps"]]
NIGHTLY = [command for command in COMMANDS if "tests/run" in command]
PASSES = "def test_passes(): pass\n"
LEAVES = """
import subprocess
from tests import conftest
no_process_is_left = conftest.no_process_is_left
conftest.eventually = lambda *_: None
def test_leaves():
    global process
    process = subprocess.Popen(["sleep", "9"])
    assert 1
"""
TRIALS = {
    "passes": (PASSES, True, "1 passed, 0 failed, 0 errors, 0 skipped"),
    "fails": (PASSES + "def test_fails(): assert 1 == 2", False, "1 passed, 1 failed, 0 errors, 0 skipped"),
    "ends its process": (PASSES + "def test_ends(): __import__('os')._exit(0)", False, "pytest did not come"),
    "hangs": ("def test_hangs(): __import__('time').sleep(60)", False, "0 passed, 1 failed"),
    "leaves a process": (LEAVES, False, "0 passed, 0 failed, 1 errors"),
    "cannot be imported": ("import nothing_of_this_name", False, "0 passed, 0 failed, 1 errors, 0 skipped"),
}


@pytest.mark.parametrize(("text", "is_good", "outcome"), TRIALS.values(), ids=TRIALS)
def test_what_does_not_end_is_no_success(tmp_path, capfd, text, is_good, outcome):
    (tmp_path / "test_trial.py").write_text(text)
    options = ("-c", str(ROOT / "pyproject.toml"), f"--rootdir={tmp_path}", str(tmp_path))
    options += ("-o", "timeout=2") * ("hangs" in text)
    found = suite.run(suite.Pass("trial", options))
    assert (found[0], found[1].startswith(outcome)) == (is_good, True), found
    printed = capfd.readouterr().out
    assert ("assert 1 == 2" in printed) == ("assert 1 == 2" in text)
    assert ("test_leaves (call) left ['sleep', '9']" in printed) == (text == LEAVES)


def test_a_pass_or_a_test_that_hangs_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(suite, "LONGEST_SECONDS", 0.1)
    assert not suite.run(suite.Pass("trial", (str(tmp_path),)))[0]
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    assert (settings["timeout"], settings["timeout_method"]) == (300, "signal")


@pytest.mark.parametrize("lost", [False, True])
def test_each_night_runs_what_is_promised(tmp_path, monkeypatch, lost):
    arguments = next(command.split()[1:] for command in NIGHTLY if "--all" in command)
    (tmp_path / "initdb").touch()
    monkeypatch.setenv("POSTGRES_BINARIES", str(tmp_path / "lost" if lost else tmp_path))
    monkeypatch.setattr(shutil, "which", lambda _: "/usr/sbin/pgbouncer")
    monkeypatch.setattr(suite, "run", lambda part: (True, part.title))
    assert suite.main(arguments) == int(lost)
    assert suite.main(["--all"]) == 0
