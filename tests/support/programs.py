"""Programs that pip does not install, and scripts in their places."""

import os
import subprocess
from pathlib import Path

import pytest


def require(program: str | None, package: str) -> str:
    """Return *program*.  Skip the test if it is missing, or fail if CI is `true`."""
    if program is None:
        message = f"{package} is not installed; as root, tests/install_system_packages.sh --all installs it"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    return program


def executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def git(folder: Path, *arguments: str | Path) -> str:
    user = ("-c", "user.name=test", "-c", "user.email=test@example.com")
    command = ("git", *user, "-c", "commit.gpgsign=false", *arguments)
    return subprocess.check_output(command, cwd=folder, text=True)
