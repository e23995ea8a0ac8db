"""The commands' `--help` is complete and consistent."""

import re

import pytest

from stackmgr import cli, paths
from stackmgr.operate.command import NOTHING, Command
from stackmgr.settings import OPTIONS

LEAVES: dict[tuple[str, ...], Command] = {
    (group.name, *([leaf.name] if group.commands else [])): leaf
    for group in cli.COMMANDS
    for leaf in group.commands or [group]
}
GROUPS = [(group.name,) for group in cli.COMMANDS if group.commands]
READ_NOTHING = [words for words, leaf in LEAVES.items() if leaf.reads == NOTHING]


@pytest.mark.parametrize("words", [*LEAVES, *GROUPS], ids=" ".join)
def test_the_help_states_purpose_exit_statuses_and_environment(command, words):
    ran = command(*words, "--help")
    assert (ran.status, ran.err) == (0, "")
    text = " ".join(ran.out.split())
    purpose = re.split(r"positional arguments:|options:", text)[0]
    assert re.search(r"\w\. $", purpose), purpose
    last = text.partition("options:")[2]
    assert "Exit status: 0 done, 1 the command could not run, 2 wrong usage" in last
    assert "Reads " in last.partition("Exit status: ")[2]


def test_the_help_of_the_program_names_every_variable(command):
    shown = command("--help").out
    variables = {option.variable for option in OPTIONS.values()}
    variables |= {f"{option.variable}_FILE" for option in OPTIONS.values() if option.is_secret}
    assert [
        variable for variable in sorted(variables) if variable not in shown.replace(",", " ").split()
    ] == []


@pytest.mark.parametrize("leaf", LEAVES.values(), ids=map(" ".join, LEAVES))
def test_every_option_is_explained(leaf):
    options = [each for each in leaf.arguments if each.names[0].startswith("-")]
    assert [each.names for each in options if not each.options.get("help")] == []


@pytest.mark.parametrize("words", READ_NOTHING, ids=" ".join)
def test_a_command_that_reads_no_variable_runs_whatever_they_hold(command, words, monkeypatch, tmp_path):
    tokens = paths.default_whitelist()
    arguments = {
        "docs": [tmp_path],
        "tokens check": [tokens],
    }
    for option in OPTIONS.values():
        monkeypatch.setenv(option.variable, "unusable")
    ran = command(*words, *arguments.get(" ".join(words), []))
    assert ran.status == 0, ran.err
