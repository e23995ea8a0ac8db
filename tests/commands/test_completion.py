"""Shell completion, in the shells themselves: TAB is pressed on a terminal."""

import os
import shutil
import sys

import pytest

from tests.commands.terminal import on_terminal
from tests.support.programs import require

# Options that skip a person's own files, and the line that loads the script.
SHELLS = {
    "bash": (("--noprofile", "--norc", "-i"), "source ./script; "),
    "zsh": (("-f", "-i"), 'autoload -Uz compinit && compinit -u -D; eval "$(cat script)"; '),
}
SHOW_ARGUMENTS = "stackmgr() { echo; printf '%s' \"($#\"; printf ' <%s>' \"$@\"; printf ')\\n'; }; "
# Computed, so that it is not found in the echo of this line.
PROMPT = "PS1=$(printf '%s%s' REA 'DY> ')\n"

# What is typed, and the arguments that the command receives.
COMPLETED = {
    "stackmgr ke\t\n": "(1 <keys>)",
    "stackmgr ver\t\n": "(1 <verify-key>)",
    "stackmgr keys rot\t\n": "(2 <keys> <rotate>)",
    "stackmgr keys issue --ext\t\n": "(3 <keys> <issue> <--external-id>)",
    "stackmgr stacks find --tok\t\n": "(3 <stacks> <find> <--token>)",
    "stackmgr due mon\t\n": "(2 <due> <monthly>)",
    "stackmgr completion z\t\n": "(2 <completion> <zsh>)",
    "stackmgr tokens check new-tok\t\n": "(3 <tokens> <check> <new-tokens.json>)",
    "stackmgr explain new-tok\t\n": "(2 <explain> <new-tokens.json>)",
}


@pytest.fixture(params=SHELLS)
def shell(request, command, tmp_path):
    """A shell on a terminal that has loaded its script; `stackmgr` there prints its arguments."""
    program = require(shutil.which(request.param), request.param)
    options, load = SHELLS[request.param]
    ran = command("completion", request.param)
    assert (ran.status, ran.err) == (0, "")
    (tmp_path / "script").write_text(ran.out, encoding="utf-8")
    (tmp_path / "new-tokens.json").touch()
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TERM": "dumb", "LANG": "C.UTF-8"}
    with on_terminal([program, *options], env, tmp_path) as terminal:
        terminal.type(load + SHOW_ARGUMENTS + PROMPT)
        terminal.read_until("READY> ")
        yield terminal


def test_tab_completes_commands_options_choices_and_file_names(shell):
    received = {}
    for typed in COMPLETED:
        shell.type(typed)
        shell.read_until("\n(")
        received[typed] = "(" + shell.read_until(")") + ")"
        shell.read_until("READY> ")
    assert received == COMPLETED


def test_a_missing_generator_is_named_with_what_installs_it(command, monkeypatch):
    monkeypatch.setitem(sys.modules, "shtab", None)
    ran = command("completion", "bash")
    assert (ran.status, ran.out) == (1, "")
    assert (
        ran.err == f"stackmgr: the generator is missing: {sys.executable} -m pip install 'shtab<2,>=1.13'\n"
    )


def test_zsh_shows_one_line_beside_each_command(command):
    lines = command("completion", "zsh").out.splitlines()
    assert "    audit:'check every stored row against the rules, and the tables against each other'" in lines


@pytest.mark.parametrize("arguments", [(), ("fish",)])
def test_another_shell_is_wrong_usage(command, arguments):
    assert command("completion", *arguments).status == 2
