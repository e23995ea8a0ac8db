"""The optional packages (extras of setup.cfg): how to install those that are missing."""

import os
import shlex
import sys
import sysconfig
import tempfile
from importlib import metadata


def installation(extra: str) -> str:
    """Return the shell command that installs the packages of *extra* for the Python that runs this.

    stackmgr itself is on no package index.  An environment that this user cannot change, such as
    the image, gets a folder beside it.
    """
    packages = [
        requirement.partition(";")[0].strip()
        for requirement in metadata.requires("stackmgr") or []
        if f'extra == "{extra}"' in requirement.replace("'", '"')
    ]
    install = [sys.executable, "-m", "pip", "install"]
    if os.access(sysconfig.get_path("purelib"), os.W_OK):
        return shlex.join([*install, *packages])
    folder = f"{tempfile.gettempdir()}/stackmgr-{extra}"
    return f"{shlex.join([*install, '--target', folder, *packages])}; export PYTHONPATH={shlex.quote(folder)}"
