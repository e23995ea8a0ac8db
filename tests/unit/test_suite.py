"""The passes of `tests/run`: nothing that did not run counts as passed."""

import os
import shutil
import sys
from pathlib import Path

import pytest
import yaml

from tests import suite
from tests.support.processes import completed

ROOT = suite.TESTS.parent
JOBS = yaml.safe_load((ROOT / ".github/workflows/nightly.yml").read_text())["jobs"].values()
COMMANDS = [step.get("run", "") for job in JOBS for step in job["steps"]]
NIGHTLY = [command for command in COMMANDS if "tests/run" in command]
# What `python -m tests.suite` is in the folder of `without_passes`.
REPLACED = f"""#!/bin/sh
exec "{sys.executable}" - "$@" <<'END'
import sys
sys.path.insert(0, "{ROOT}")
from tests import suite
from tests.support.processes import completed

from tests.support.processes import completed
suite.run = lambda part: (True, part.title)
sys.exit(suite.main(sys.argv[3:]))
END
"""

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
def test_each_night_runs_what_is_promised(without_passes, command, lost):
    if lost:
        shutil.rmtree(without_passes / "postgresql")
    variables = {name: value for name, value in os.environ.items() if name != "CITUS_BINARIES"}
    variables |= {"CI": "true", "PATH": f"{without_passes}/bin:/bin"}
    variables |= {"POSTGRES_BINARIES": str(without_passes / "postgresql")}
    ran = completed(["/bin/sh", "-ec", command], cwd=without_passes, env=variables)
    promised = "--all" in command
    assert ran.returncode == int(lost and promised), ran.stdout + ran.stderr
    assert ("tests on Citus: left out" in ran.stdout) == promised
