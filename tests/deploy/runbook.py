"""The commands that the runbook prints."""

import re
from pathlib import Path
from textwrap import dedent

from stackmgr import paths

RUNBOOK = paths.directory("deploy") / "RUNBOOK.md"


def blocks(section: str, page: Path = RUNBOOK) -> list[str]:
    """Return the indented blocks of a section of *page*; those above the first are in that of its title."""
    text = re.sub(r"^# ", "## ", page.read_text(), count=1)
    [body] = re.findall(rf"^## {section}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return [dedent(found) for found in re.findall(r"(?:^ {4}.*\n)+", body, re.MULTILINE)]


def lines(section: str, page: Path = RUNBOOK) -> list[str]:
    return [line for block in blocks(section, page) for line in block.splitlines()]


def block(section: str, containing: str) -> str:
    [found] = [found for found in blocks(section) if containing in found]
    return found
