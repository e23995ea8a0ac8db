"""Copies of the source, for tests that build or install it."""

import shutil
from pathlib import Path

from stackmgr import paths

ROOT = paths.directory("schemas").parent
TOP_LEVEL = ("CHANGELOG.md", "LICENSE", "README.md", "pyproject.toml", "setup.cfg")
DATA = ("deploy", "schemas", "sql")


def copy_source(to: Path) -> Path:
    """Copy the source to the folder *to*, without what earlier builds left in this checkout."""
    to.mkdir(exist_ok=True)
    for name in TOP_LEVEL:
        shutil.copy(ROOT / name, to)
    for name in ("stackmgr", *DATA):
        shutil.copytree(ROOT / name, to / name, ignore=shutil.ignore_patterns("__pycache__"))
    return to
