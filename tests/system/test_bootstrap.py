"""deploy/bootstrap.sh, which deploy/dev and tests/run source: creates a complete .venv."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.source import ROOT

INSTALLS = 'pip() { echo "pip $*"; }'
# The file appears in what becomes `sleep`: a subshell has no traps, so SIGINT ends it at any moment.
HANGS = "pip() ( : >installing; exec sleep 60 )"
PATIENCE = 60.0


@pytest.fixture
def checkout(tmp_path):
    """A folder with the script and a lock; packages are not really installed."""
    (tmp_path / "deploy" / "locks").mkdir(parents=True)
    shutil.copy(ROOT / "deploy" / "bootstrap.sh", tmp_path / "deploy")
    shutil.copy(ROOT / "deploy" / "locks" / "dev.txt", tmp_path / "deploy" / "locks")
    return tmp_path


def start(checkout: Path, python: str | Path | None, pip: str = INSTALLS) -> subprocess.Popen[str]:
    environ = {name: value for name, value in os.environ.items() if name != "PYTHON"}
    environ["PATH"] = f"{Path(sys.executable).parent}:{environ['PATH']}"
    return subprocess.Popen(
        ["/bin/sh", "-euc", f". deploy/bootstrap.sh\n{pip}\nbootstrap dev 10", "deploy/dev"],
        cwd=checkout,
        env=environ | ({"PYTHON": str(python)} if python else {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def bootstrap(checkout: Path, python: str | Path | None = None) -> tuple[int, str]:
    """Run bootstrap and return its exit status and standard error."""
    with start(checkout, python) as process:
        _, messages = process.communicate(timeout=PATIENCE)
    return process.returncode, messages


def quick_python(folder: Path, version: str = "") -> Path:
    """Create a Python whose environments have an empty pip and which may report another version."""
    path = folder / f"python{version}"
    claim = f"echo {version}" if version else f'exec {sys.executable} "$@"'
    path.write_text(
        f"""#!/bin/sh
case "$*" in
    *print*) {claim} ;;
    *venv*) {sys.executable} "$@" --without-pip && : >"$(echo .venv/lib/python3*/site-packages)/pip.py" ;;
esac
"""
    )
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("version", ["2.7", "3.9", "3.10"])
def test_rejects_an_old_python_before_creating_anything(checkout, version):
    python = quick_python(checkout, version)
    status, message = bootstrap(checkout, python)
    assert status == 1
    assert message == (
        f"Python 3.11 or newer is required, but {python} is Python {version}: "
        "PYTHON=/path/to/python3 deploy/dev\n"
    )
    assert not (checkout / ".venv").exists()


def test_names_a_missing_python(checkout):
    status, messages = bootstrap(checkout, "python3.99")
    assert (status, messages.count("\n")) == (1, 1)
    assert "python3.99 is not found" in messages


def test_reports_progress_on_the_first_run_and_after_a_lock_change(checkout):
    python = quick_python(checkout)
    status, messages = bootstrap(checkout, python)
    assert status == 0
    assert [line.split()[0] for line in messages.splitlines()] == ["creating", "installing"]
    assert bootstrap(checkout, python) == (0, "")
    (checkout / "deploy" / "locks" / "dev.txt").write_text("# changed\n")
    assert "installing deploy/locks/dev.txt" in bootstrap(checkout, python)[1]


def test_recreates_the_environment_only_for_another_python_in_the_variable(checkout):
    assert bootstrap(checkout, quick_python(checkout))[0] == 0
    mark = checkout / ".venv" / "mark"
    mark.touch()
    assert bootstrap(checkout)[0] == 0
    assert mark.exists()
    assert bootstrap(checkout, quick_python(checkout, "3.97"))[0] == 0
    assert not mark.exists()


def test_recreates_an_environment_without_pip(checkout):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", checkout / ".venv"], check=True)
    assert bootstrap(checkout)[0] == 0
    subprocess.run([checkout / ".venv/bin/pip", "--version"], check=True, capture_output=True)


def test_recreates_an_environment_whose_python_is_gone(checkout):
    (checkout / ".venv" / "bin").mkdir(parents=True)
    (checkout / ".venv" / "bin" / "python").symlink_to("/nonexistent/python3")
    assert bootstrap(checkout, quick_python(checkout))[0] == 0
    assert (checkout / ".venv" / "bin" / "python").exists()


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        ("Failed to establish a new connection: [Errno 111]", "the package index cannot be reached"),
        ("ERROR: No space left on device", "ERROR: No space left on device"),
    ],
)
def test_an_index_that_cannot_be_reached_is_one_sentence(checkout, failure, message):
    python = quick_python(checkout)
    text = python.read_text().replace(': >"$(', f'echo "import sys; sys.exit({failure!r})" >"$(')
    python.write_text(text)
    with start(checkout, python, pip="") as process:
        _, messages = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    creating, installing, *rest = messages.splitlines()
    assert (creating.split()[0], installing.split()[0], len(rest)) == ("creating", "installing", 1)
    assert rest[0].startswith(message)
    assert (checkout / ".venv.incomplete").exists()


@pytest.mark.parametrize("moment", [".venv/bin/python", "installing"])
def test_recovers_from_an_interruption_on_the_next_run(checkout, moment):
    python = None if moment.startswith(".venv") else quick_python(checkout)
    with start(checkout, python, HANGS) as process:
        deadline = time.monotonic() + PATIENCE
        while not (checkout / moment).exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.001)
        # As a terminal does: to every process of the group.
        os.killpg(process.pid, signal.SIGINT)
        _, messages = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert messages.endswith("interrupted; run deploy/dev again to continue\n")
    assert "Traceback" not in messages
    status, messages = bootstrap(checkout, quick_python(checkout))
    assert status == 0
    assert messages.startswith("creating .venv")
    assert not (checkout / ".venv.incomplete").exists()
