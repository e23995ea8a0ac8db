"""The page of the commands shows what they print.

    STACKMGR_WRITE_TRANSCRIPTS=1 python -m pytest tests/operate/test_transcripts.py

runs every command line of the page, a line `$ ...` of a console block, and writes its output below it.
"""

import os
import re
import shlex
from pathlib import Path

import pytest

from stackmgr import paths
from tests.operate import saved

PAGE = paths.directory("deploy") / "COMMANDS.md"
BLOCK = re.compile(r"(?<=^```console\n).*?(?=^```$)", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ (.+)$", re.MULTILINE)


@pytest.fixture
def run_line(on_saved, run_psql, saved_url, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STACKMGR_TOKENS", "tokens.json")
    Path("tokens.json").write_bytes(saved.TOKENS_FILE.read_bytes())
    Path("new-tokens.json").write_text(saved.whitelist_without("AMD"))
    Path("deploy").symlink_to(paths.directory("deploy"))

    def run(line: str) -> str:
        program, *arguments = shlex.split(line)
        if program == "psql":
            assert arguments[:3] == ["-X", "-d", "stackmgr"]
            ran = run_psql(saved_url, *arguments[3:])
        else:
            assert program == "stackmgr", line
            ran = on_saved(*arguments, terminal=True)
        status = f"[exit {ran.status}]\n" if ran.status else ""
        return "\n".join(each.rstrip() for each in (ran.out + ran.err + status).splitlines()) + "\n"

    return run


def test_every_transcript_is_what_the_commands_print(run_line):
    text = PAGE.read_text(encoding="utf-8")
    assert BLOCK.search(text)
    rebuilt = BLOCK.sub(
        lambda block: "".join(f"$ {line}\n{run_line(line)}" for line in COMMAND.findall(block[0])), text
    )
    if os.environ.get("STACKMGR_WRITE_TRANSCRIPTS"):
        PAGE.write_text(rebuilt, encoding="utf-8")
    assert text == rebuilt
