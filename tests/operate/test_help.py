"""The commands' `--help` is complete and consistent."""

import re

import pytest

from stackmgr import cli, paths
from stackmgr.settings import OPTIONS
from tests.support.command_line import subcommands

GROUPS = {(name,): parser for name, parser in subcommands(cli.make_parser()).items()}
LEAVES = {
    (*words, *second): leaf
    for words, parser in GROUPS.items()
    for second, leaf in {(name,): leaf for name, leaf in subcommands(parser).items()}.items()
    or [((), parser)]
}


@pytest.mark.parametrize("words", sorted({*GROUPS, *LEAVES}), ids=" ".join)
def test_the_help_states_purpose_exit_statuses_environment_and_options(command, words):
    ran = command(*words, "--help")
    assert (ran.status, ran.err) == (0, "")
    text = " ".join(ran.out.split())
    assert text.startswith(" ".join(["usage: stackmgr", *words]))
    purpose = re.split(r"positional arguments:|options:", text)[0]
    assert re.search(r"\w\. $", purpose), purpose
    last = text.partition("options:")[2]
    assert "Exit status: 0 done, 1 the command could not run, 2 wrong usage" in last
    assert "Reads " in last.partition("Exit status: ")[2]
    options = [each for each in (LEAVES | GROUPS)[words]._actions if each.option_strings]
    assert [each.option_strings for each in options if not each.help] == []


def test_the_help_of_the_program_states_every_variable_with_its_default(command):
    shown = command("--help").out
    for option in OPTIONS.values():
        assert re.search(rf"{option.variable} .*\[{re.escape(option.default_text)}\]", shown)
        assert not option.is_secret or f"{option.variable}_FILE" in shown


def test_a_command_that_reads_no_variable_runs_whatever_they_hold(command, monkeypatch):
    assert [words for words, leaf in LEAVES.items() if "Reads no " in leaf.epilog] == [("tokens", "check")]
    for option in OPTIONS.values():
        monkeypatch.setenv(option.variable, "unusable")
    ran = command("tokens", "check", paths.default_whitelist())
    assert ran.status == 0, ran.err
