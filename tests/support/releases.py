"""Releases of the service made for a test, side by side, as an operator has them below one folder."""

import shutil
from pathlib import Path

from stackmgr import paths

_SOURCE = paths.directory("deploy").parent
_NOT_FOUND = "The resource was not found."


def make_release(folder: Path, not_found: str, source: Path | None = None) -> None:
    """Put a release of *source*, or of this checkout, into *folder*, and let its 404 say *not_found*."""
    for name in ("stackmgr", "sql", "schemas", "deploy"):
        shutil.copytree(
            (source or _SOURCE) / name, folder / name, ignore=shutil.ignore_patterns("__pycache__")
        )
    errors = folder / "stackmgr" / "errors.py"
    text = errors.read_text()
    assert _NOT_FOUND in text
    errors.write_text(text.replace(_NOT_FOUND, not_found))


def switch(current: Path, release: str) -> None:
    """Let the link *current* lead to another release beside it, with no moment in between (`ln -sfn`)."""
    new = current.with_name("current.new")
    new.symlink_to(release)
    new.rename(current)
