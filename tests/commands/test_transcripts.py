"""The page of the commands shows what they print."""

import re
import shlex
from pathlib import Path

import pytest

from tests.commands import saved, transcripts

STACK = """\
{"name": "Growth",
 "allocation": [{"token_address": "0xAF3D76f1834A1d425780943C99Ea8A608f8a93f9", "weight_bps": 9999}],
 "schedule": {"preset": "Weekly"}}
"""
FIXED = STACK.replace("0xAF3D", "0xaF3D").replace("9999", "10000").replace("Weekly", "weekly")


@pytest.fixture
def run_line(on_saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return a function that runs a command line of the page, in a folder with the files that it names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STACKMGR_TOKENS", "tokens.json")
    Path("tokens.json").write_bytes(saved.TOKENS_FILE.read_bytes())
    Path("stack.json").write_text(STACK)
    Path("fixed.json").write_text(FIXED)
    Path("daily.json").write_text(FIXED.replace("weekly", "daily"))
    Path("new-tokens.json").write_text(saved.whitelist_without("AMD"))

    def run(line: str) -> str:
        program, *arguments = shlex.split(line)
        if program == "cat":
            return Path(arguments[0]).read_text(encoding="utf-8")
        assert program == "stackmgr", line
        ran = on_saved(*arguments, terminal=True)
        status = f"[exit {ran.status}]\n" if ran.status else ""
        # The rate of an audit is another one in each run.
        printed = re.sub(r"\d+ s, [\d,]+ stacks/s", "0 s, 4,000 stacks/s", ran.out + ran.err)
        return printed + status

    return run


def test_every_transcript_is_what_the_commands_print(run_line):
    text = transcripts.PAGE.read_text(encoding="utf-8")
    assert transcripts.commands(text)
    rebuilt = transcripts.rebuilt(text, run_line)
    if transcripts.WRITE:
        transcripts.PAGE.write_text(rebuilt, encoding="utf-8")
    assert text == rebuilt
