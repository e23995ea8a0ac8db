"""The commands' `--help` is complete and consistent."""

import argparse
import re
from collections.abc import Iterator

import pytest

from stackmgr import cli, paths
from stackmgr.commands.common import subcommands
from stackmgr.settings import OPTIONS


def leaves(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield the parser of every command that has none below it."""
    below = [command for _, command in subcommands(parser)]
    if not below:
        yield parser
    for command in below:
        yield from leaves(command)


LEAVES = [*leaves(cli._parser())]
WORDS = [tuple(parser.prog.split()[1:]) for parser in LEAVES]
GROUPS = sorted({words[:1] for words in WORDS if len(words) > 1})
READ_NOTHING = [words for words, parser in zip(WORDS, LEAVES, strict=True) if "no STACKMGR" in parser.epilog]


@pytest.mark.parametrize("words", [*WORDS, *GROUPS], ids=" ".join)
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


@pytest.mark.parametrize("parser", LEAVES, ids=lambda parser: parser.prog)
def test_every_option_is_explained(parser):
    assert [
        action.option_strings for action in parser._actions if action.option_strings and not action.help
    ] == []


@pytest.mark.parametrize("words", READ_NOTHING, ids=" ".join)
def test_a_command_that_reads_no_variable_runs_whatever_they_hold(command, words, monkeypatch, tmp_path):
    tokens = paths.default_whitelist()
    arguments = {
        "docs": [tmp_path],
        "completion": ["bash"],
        "due": ["daily"],
        "tokens check": [tokens],
        "tokens diff": [tokens, tokens],
    }
    for option in OPTIONS.values():
        monkeypatch.setenv(option.variable, "unusable")
    ran = command(*words, *arguments.get(" ".join(words), []))
    assert ran.status == 0, ran.err
