"""The transcripts of `deploy/COMMANDS.md`: each command line is run, and its output compared or written.

    STACKMGR_WRITE_TRANSCRIPTS=1 python -m pytest tests/operate/test_transcripts.py

runs every command line of the page, a line `$ ...` of a console block, and writes its output below it.
"""

import os
import re
from collections.abc import Callable

from stackmgr import paths

WRITE = bool(os.environ.get("STACKMGR_WRITE_TRANSCRIPTS"))
PAGE = paths.directory("deploy") / "COMMANDS.md"

_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^\$ (.+)$", re.MULTILINE)


def commands(text: str) -> list[str]:
    """Return the command lines of the page, in order."""
    return [line for block in _BLOCK.findall(text) for line in _COMMAND.findall(block)]


def rebuilt(text: str, run: Callable[[str], str]) -> str:
    """Return the page with the output of each command line as *run* returns it."""

    def block(match: re.Match[str]) -> str:
        lines = (f"$ {line}\n{run(line)}" for line in _COMMAND.findall(match[1]))
        return f"```console\n{''.join(lines)}```"

    return _BLOCK.sub(block, text)
