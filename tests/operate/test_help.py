"""The commands' `--help` is complete and consistent."""

import argparse
import re

import pytest

from stackmgr import cli, paths
from stackmgr.settings import OPTIONS


def subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    [action] = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)] or [None]
    return {} if action is None else dict(action.choices)


GROUPS = {(name,): parser for name, parser in subcommands(cli.make_parser()).items()}
LEAVES = {
    (*words, *second): leaf
    for words, parser in GROUPS.items()
    for second, leaf in {(name,): leaf for name, leaf in subcommands(parser).items()}.items()
    or [((), parser)]
}


@pytest.mark.parametrize("words", sorted({*LEAVES, *GROUPS}), ids=" ".join)
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
    assert [each.option_strings for each in leaf._actions if each.option_strings and not each.help] == []


def test_a_command_that_reads_no_variable_runs_whatever_they_hold(command, monkeypatch):
    assert [words for words, leaf in LEAVES.items() if "Reads no " in leaf.epilog] == [("tokens", "check")]
    for option in OPTIONS.values():
        monkeypatch.setenv(option.variable, "unusable")
    ran = command("tokens", "check", paths.default_whitelist())
    assert ran.status == 0, ran.err
