"""Copies of the source: to build or install, or as releases of the service below one folder."""

import shutil
import subprocess
from pathlib import Path

from stackmgr import paths

ROOT = paths.directory("schemas").parent
DATA = ("deploy", "schemas", "sql")
_TOP_LEVEL = ("CHANGELOG.md", "LICENSE", "README.md", "pyproject.toml", "setup.cfg")
_NOT_FOUND = "The resource was not found."


def commit() -> str:
    """Return what a page states beside a figure: `deploy/release` looks whether the service changed since."""
    git = ("/usr/bin/env", "git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*")
    return f"commit {subprocess.check_output(git, text=True).strip()}"


def copy_source(to: Path, source: Path = ROOT) -> Path:
    to.mkdir(exist_ok=True)
    for name in _TOP_LEVEL:
        shutil.copy(source / name, to)
    for name in ("stackmgr", *DATA):
        shutil.copytree(source / name, to / name, ignore=shutil.ignore_patterns("__pycache__"))
    return to


def make_release(folder: Path, not_found: str, source: Path | None = None) -> None:
    """Put a release of *source*, or of this checkout, into *folder*, and let its 404 say *not_found*."""
    errors = copy_source(folder, source or ROOT) / "stackmgr" / "errors.py"
    text = errors.read_text()
    assert _NOT_FOUND in text
    errors.write_text(text.replace(_NOT_FOUND, not_found))


def switch(current: Path, release: str) -> None:
    """Let the link *current* lead to another release beside it, with no moment in between (`ln -sfn`)."""
    new = current.with_name("current.new")
    new.symlink_to(release)
    new.rename(current)
