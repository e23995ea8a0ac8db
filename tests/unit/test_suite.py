"""The passes of `tests/run`: nothing that did not run counts as passed."""

import os
import shutil
import signal
import sys
from pathlib import Path

import hypothesis
import pytest
import yaml

from tests import suite
from tests.support.processes import completed
from tests.support.programs import executable, git

ROOT = suite.TESTS.parent
JOBS = yaml.safe_load((ROOT / ".github/workflows/nightly.yml").read_text())["jobs"].values()
[NIGHT] = [step["run"] for job in JOBS for step in job["steps"] if "--all" in step.get("run", "")]
# Without plugins that no trial needs: they take most of its time.
OF_TRIALS = {"TRIAL": "of the pass", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
PASSES = "def test_passes(): assert __import__('os').environ['TRIAL'] == 'of the pass'\n"
FAILS = """
def test_fails(): assert 1 == 2
def test_warns(): __import__('warnings').warn('old', stacklevel=1)
@__import__("pytest").mark.xfail
def test_is_better_than_expected(): pass
"""
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
    "fails": (PASSES + FAILS, False, "1 passed, 3 failed, 0 errors, 0 skipped"),
    "ends its process": (PASSES + "def test_ends(): __import__('os')._exit(0)", False, "pytest did not come"),
    "hangs": ("def test_hangs(): __import__('time').sleep(60)", False, "0 passed, 1 failed"),
    "leaves a process": (LEAVES, False, "0 passed, 0 failed, 1 errors"),
    "cannot be imported": ("import nothing_of_this_name", False, "0 passed, 0 failed, 1 errors, 0 skipped"),
}
SAY = """#!/bin/sh
line="$(basename "$0") $*"; echo "$line" >>"$LOG"; case $line in "$FAILING"*) exit 3 ;; esac
"""
INSTALLS = "tests/install_system_packages.sh"
CHECKS = [f"{INSTALLS[6:]} --all", "ruff format --check --quiet", "ruff check --quiet"]
CHECKS += ["mypy --no-error-summary", "lint-imports --no-cache", "python -m tests.suite --all"]


@pytest.mark.parametrize(("text", "is_good", "outcome"), TRIALS.values(), ids=TRIALS)
def test_what_does_not_end_is_no_success(tmp_path, capfd, monkeypatch, text, is_good, outcome):
    monkeypatch.setenv("TRIAL", "of the shell")
    (tmp_path / "test_trial.py").write_text(text)
    options = ("-p", "pytest_timeout", f"-c{ROOT}/pyproject.toml", f"--rootdir={tmp_path}", str(tmp_path))
    options += ("-o", "timeout=2") * ("hangs" in text)
    found = suite.run(suite.Pass("trial", options, variables=OF_TRIALS))
    assert (found[0], found[1].startswith(outcome)) == (is_good, True), found
    printed = capfd.readouterr().out
    assert ("assert 1 == 2" in printed) == ("assert 1 == 2" in text)
    assert ("test_leaves (call) left ['sleep', '9']" in printed) == (text == LEAVES)


def test_a_pass_or_a_test_that_hangs_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(suite, "LONGEST_SECONDS", 0.1)
    assert not suite.run(suite.Pass("trial", (str(tmp_path),)))[0]
    assert signal.getsignal(signal.SIGTERM) is signal.default_int_handler
    assert hypothesis.settings.default.derandomize


@pytest.mark.parametrize("lost", [False, True])
def test_each_night_runs_what_is_promised(tmp_path, monkeypatch, lost):
    (tmp_path / "initdb").touch()
    monkeypatch.setenv("POSTGRES_BINARIES", str(tmp_path / "lost" if lost else tmp_path))
    monkeypatch.setattr(shutil, "which", lambda _: "/usr/sbin/pgbouncer")
    monkeypatch.setattr(suite, "run", lambda part: (True, part.title))
    assert suite.main(NIGHT.split()[1:]) == int(lost)
    assert suite.main(["--all"]) == 0
    monkeypatch.setattr(suite, "run", lambda part: (bool(part.name), ""))  # the first fails, and no other
    assert suite.main(["--all"]) == 1
    everything = [*suite.passes(everything=True)]
    assert "--ignore" not in " ".join(everything[0].arguments)
    assert {path.split("/")[1] for path in suite.EXTENDED} == {"clients", "deploy", "faults", "measure"}
    damaged = {f"tests/database/test_{name}.py" for name in ("classification", "standby", "server_settings")}
    assert {"tests/sql", "tests/contract/test_routing.py", *suite.POOLED, *damaged} == {*suite.ON_OLDEST}


def written(folder: Path, *names: str, text: str = SAY) -> None:
    for name in names:
        executable(folder / name, text)


@pytest.mark.parametrize("failing", [*CHECKS, "none"])
def test_run_stops_at_the_check_that_fails(tmp_path, failing):
    written(tmp_path, INSTALLS, *(f".venv/bin/{each.split()[0]}" for each in CHECKS[1:]))
    written(tmp_path, "deploy/bootstrap.sh", text="bootstrap() { :; }\n")
    written(tmp_path, "tests/run", text=(ROOT / "tests/run").read_text())
    run = {"LOG": str(tmp_path / "log"), "FAILING": failing, "PATH": os.defpath}
    assert bool(completed([tmp_path / "tests/run", "--all"], env=run).returncode) == (failing in CHECKS)
    ran = (tmp_path / "log").read_text().splitlines()
    assert ran == CHECKS[: len(ran)]
    assert ran[-1] == (failing if failing in CHECKS else CHECKS[-1])
    assert completed([tmp_path / "tests/run", "-k", "x y"], env=run).returncode == 0
    assert (tmp_path / "log").read_text().splitlines()[-1] == "python -m pytest -k x y"


@pytest.mark.parametrize(("user", "failing"), [
    ("0", ""), ("1000", ""), ("0", "install"), ("0", "chown"), ("0", "ensurepip"),
])  # fmt: skip
def test_ci_runs_a_clean_copy_as_an_ordinary_user(tmp_path, user, failing):
    written(tmp_path, INSTALLS, "bin/chown", "bin/apt-get")
    written(tmp_path, "bin/lame", text="#!/bin/sh\ncase $2 in *ensurepip*) exit 1; esac\n")
    written(tmp_path, "bin/id", text=f"#!/bin/sh\necho {user}\n")
    written(tmp_path, "bin/setpriv", text='#!/bin/sh\necho "$1 $2 $3" >>"$LOG"; shift 3; exec "$@"\n')
    written(tmp_path, "tests/run", text='#!/bin/sh\necho "$HOME|$PWD|$*|$PYTHON"; ls; exit 7\n')
    written(tmp_path, ".ci/run", text=(ROOT / ".ci/run").read_text())
    for arguments in ("init --quiet", "add tests .ci", "commit --quiet --message first"):
        git(tmp_path, *arguments.split())
    python = f"{tmp_path}/bin/lame" if failing == "ensurepip" else sys.executable
    run = os.environ | {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "PYTHON": python}
    run |= {"LOG": str(tmp_path / "log"), "FAILING": failing or "none", "HOME": "/nowhere"}
    ended = completed([tmp_path / ".ci/run", "-k", "x"], env=run)
    stops = failing in ("install", "chown")
    assert ended.returncode == (3 if stops else 7), ended.stderr
    if stops:
        assert ended.stdout == ""
        return
    where, *files = ended.stdout.splitlines()
    home, folder, *rest = where.split("|")
    assert rest == ["-k x", "/usr/bin/python3" if failing else sys.executable]
    if user == "0":
        assert (folder, files) == (f"{home}/a folder/stackmgr", ["tests"])
        assert not Path(home).exists()
        said = (tmp_path / "log").read_text().splitlines()
        assert said[0] == f"{INSTALLS[6:]} -k x"
        assert said[-1] == "--reuid=nobody --regid=nogroup --clear-groups"
    else:
        assert Path(folder) == tmp_path
