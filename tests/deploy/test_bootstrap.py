"""deploy/bootstrap.sh, which deploy/dev and tests/run source: creates a complete .venv."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.releases import ROOT

# A package appears, as pip makes one.
INSTALLS = (
    'pip() { echo "pip $*" >>pip; mkdir -p "$(echo .venv/lib/python3*/site-packages)/one-1.dist-info"; }'
)
# The file appears in what becomes `sleep`: a subshell has no traps, so SIGINT ends it at any moment.
HANGS = "pip() ( : >installing; exec sleep 60 )"
PATIENCE = 60.0


@pytest.fixture
def checkout(tmp_path):
    """A folder with the script and a lock; packages are not really installed."""
    for name in (
        "deploy/bootstrap.sh",
        "deploy/locks/build.txt",
        "deploy/locks/dev.txt",
        "setup.cfg",
        "pyproject.toml",
        "stackmgr/__init__.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
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


def bootstrap(checkout: Path, python: str | Path | None = None, pip: str = INSTALLS) -> tuple[int, str]:
    """Run bootstrap and return its exit status and standard error."""
    with start(checkout, python, pip) as process:
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
    message = f"Python 3.11 or newer is required, but {python} is Python {version}: "
    assert bootstrap(checkout, python) == (1, f"{message}PYTHON=/path/to/python3 deploy/dev\n")
    assert not (checkout / ".venv").exists()


@pytest.mark.parametrize(
    "change",
    [
        "echo '# changed' >>deploy/locks/dev.txt",
        "echo '# changed' >>deploy/locks/build.txt",
        "echo '# changed' >>setup.cfg",
        "echo '# changed' >>pyproject.toml",
        "echo '__version__ = \"9\"' >>stackmgr/__init__.py",
        "rm -r .venv/lib/python3*/site-packages/one-1.dist-info",
        'mkdir "$(echo .venv/lib/python3*/site-packages)/two-1.dist-info"',
        "rm .venv/dev.state",
    ],
)
def test_installs_with_progress_once_something_has_changed_and_not_before(checkout, change):
    python = quick_python(checkout)
    status, messages = bootstrap(checkout, python)
    assert status == 0
    assert [line.split()[0] for line in messages.splitlines()] == ["creating", "installing"]
    calls = (checkout / "pip").read_text()
    assert bootstrap(checkout, python) == (0, "")
    assert (checkout / "pip").read_text() == calls
    subprocess.run(["/bin/sh", "-c", change], check=True, cwd=checkout)
    assert "installing deploy/locks/dev.txt" in bootstrap(checkout, python)[1]
    assert (checkout / "pip").read_text() == 2 * calls
    assert bootstrap(checkout, python) == (0, "")


def test_an_installation_that_failed_is_repeated_and_that_of_a_moved_checkout(checkout):
    python = quick_python(checkout)
    assert bootstrap(checkout, python, "pip() { return 1; }")[0] == 1
    assert bootstrap(checkout, python)[0] == 0
    assert (checkout / "pip").exists()
    moved = checkout.rename(checkout.with_name("moved"))
    assert "installing deploy/locks/dev.txt" in bootstrap(moved)[1]


@pytest.mark.parametrize("arguments", [["--port", "PORT"], ["--port=PORT", "--data", "elsewhere"]])
def test_a_port_in_use_is_named_before_anything_is_installed(checkout, arguments):
    shutil.copy(ROOT / "deploy" / "dev", checkout / "deploy")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [checkout / "deploy" / "dev", *(each.replace("PORT", port) for each in arguments)]
        ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=PATIENCE)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == f"port {port} is in use or not permitted; choose another with --port\n"
    assert not (checkout / ".venv").exists()


@pytest.mark.parametrize("moment", [".venv/bin/python", "installing"])
def test_recovers_from_an_interruption_on_the_next_run(checkout, moment):
    python = None if moment.startswith(".venv") else quick_python(checkout)
    with start(checkout, python, HANGS) as process:
        while not (checkout / moment).exists():
            assert process.poll() is None
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
