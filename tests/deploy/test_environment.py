"""Settings and commands in deploy/ are those that the service reads and the command accepts."""

import re
import shlex
import subprocess
from uuid import uuid4

import pytest

from stackmgr import cli, paths
from stackmgr.settings import OPTIONS

RUNBOOK = paths.directory("deploy") / "RUNBOOK.md"
EXAMPLE = paths.directory("deploy") / "stackmgr.env.example"
NAME = re.compile(r"STACKMGR_[A-Z_]*[A-Z]")


def test_the_example_names_every_option_and_no_other_variable():
    named = set(NAME.findall(EXAMPLE.read_text()))
    variables = {option.variable for option in OPTIONS.values()}
    assert variables == {name.removesuffix("_FILE") for name in named}
    assert {f"{option.variable}_FILE" for option in OPTIONS.values() if option.is_secret} == named - variables


def test_the_example_states_the_defaults():
    commented = dict(re.findall(r"^#([A-Z_]+)=(.*)$", EXAMPLE.read_text(), re.MULTILINE))
    for option in OPTIONS.values():
        if option.default not in ("", None, paths.default_whitelist()):
            assert commented[option.variable] == option.default_text


def test_the_help_states_variables_and_defaults():
    shown = cli.make_parser().format_help()
    for option in OPTIONS.values():
        assert re.search(rf"{option.variable} .*\[{re.escape(option.default_text)}\]", shown)


def test_sh_reads_the_example_as_systemd_does():
    """An operator sources it for `stackmgr migrate`; every line is a comment or one plain assignment."""
    lines = [line for line in EXAMPLE.read_text().splitlines() if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Z_]+=('[^']*'|[\w.:/-]*)", line) for line in lines)
    script = ["set -eu", '. "$1"', 'printf %s "$STACKMGR_DATABASE_URL"']
    command = ["/bin/sh", "-c", "; ".join(script), "sh", str(EXAMPLE)]
    sourced = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert sourced.startswith("postgresql://stackmgr_service:PASSWORD@")
    assert "&sslmode=verify-full&" in sourced


def printed_commands() -> list[str]:
    """Return what the runbook prints after `stackmgr`, except requests for help and incomplete commands."""
    found = re.findall(
        r"(?:^ {4,}|`)(?:RELEASE=\$V )?stackmgr (\w[^`\n#]*)", RUNBOOK.read_text(), re.MULTILINE
    )
    return sorted({command for command in found if not command.endswith(("--help", "..."))})


@pytest.mark.parametrize("command", printed_commands())
def test_the_command_accepts_what_the_runbook_prints(command):
    arguments = shlex.split(re.sub(r"\b(KEY_ID|MANAGER_ID|STACK_ID|UUID)\b", str(uuid4()), command))
    assert cli.make_parser().parse_args(arguments).run
