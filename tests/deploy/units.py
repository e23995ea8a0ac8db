"""The systemd units of deploy/, as they read on this machine."""

import re
import sys
from pathlib import Path

from stackmgr import paths

DEPLOY = paths.directory("deploy")
_INSTALLED = "/opt/stackmgr/current"


def unit(name: str, deploy: Path = DEPLOY) -> str:
    """Return the unit, with this interpreter and the files of *deploy* in place of an installed release."""
    text = (deploy / name).read_text()
    return text.replace(f"{_INSTALLED}/bin/python", sys.executable).replace(
        f"{_INSTALLED}/deploy", str(deploy)
    )


def values(name: str, key: str, deploy: Path = DEPLOY) -> list[str]:
    """Return what the unit says for *key*, each time it does."""
    return re.findall(rf"^{key}=(.*)$", unit(name, deploy), re.MULTILINE)
