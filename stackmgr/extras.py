"""The optional packages (extras of setup.cfg): how to install those that are missing."""

import shlex
import sys
from importlib import metadata


def installation(extra: str) -> str:
    """Return the shell command that installs the packages of *extra* for the Python that runs this.

    It names them one by one: stackmgr itself is on no package index.
    """
    packages = [
        requirement.partition(";")[0].strip()
        for requirement in metadata.requires("stackmgr") or []
        if f'extra == "{extra}"' in requirement.replace("'", '"')
    ]
    return shlex.join([sys.executable, "-m", "pip", "install", *packages])
