"""The systemd units of deploy/, as they read on this machine, and what the tests expect of its files."""

import re
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from stackmgr import paths

DEPLOY = paths.directory("deploy")
EXPECTED: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("expected.yml").read_text())
_SETTINGS = (DEPLOY / "gunicorn.conf.py").read_text()
GRACEFUL_TIMEOUT_SECONDS = int(re.findall(r"^graceful_timeout = (\d+)$", _SETTINGS, re.MULTILINE)[0])
_INSTALLED = "/opt/stackmgr/current"


@cache
def _link() -> tempfile.TemporaryDirectory[str]:
    """A folder whose path has no space, with links to this checkout and to this interpreter's environment."""
    folder = tempfile.TemporaryDirectory(prefix="stackmgr-")
    Path(folder.name, "deploy").symlink_to(DEPLOY)
    Path(folder.name, "environment").symlink_to(Path(sys.executable).parents[1])
    return folder


def unit(name: str, deploy: Path | None = None) -> str:
    link = Path(_link().name)
    text = ((deploy or DEPLOY) / name).read_text()
    python = str(link / "environment" / "bin" / Path(sys.executable).name)
    text = text.replace(f"{_INSTALLED}/bin/python", python)
    return text.replace(f"{_INSTALLED}/deploy", str(deploy or link / "deploy"))


def values(name: str, key: str, deploy: Path | None = None) -> list[str]:
    return re.findall(rf"^{key}=(.*)$", unit(name, deploy), re.MULTILINE)
