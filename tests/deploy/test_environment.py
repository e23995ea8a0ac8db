"""What deploy/ tells an operator to write and to type is what the service reads and the command takes."""

import re
import shlex
import subprocess
from pathlib import Path
from uuid import uuid4

import pytest

import stackmgr.settings
from stackmgr import cli, paths

RUNBOOK = paths.directory("deploy") / "RUNBOOK.md"
EXAMPLE = paths.directory("deploy") / "stackmgr.env.example"
NAME = re.compile(r"STACKMGR_[A-Z_]*[A-Z]")


def test_the_example_names_every_variable_that_the_service_reads_and_no_other():
    read = set()
    for path in Path(stackmgr.__file__).parent.rglob("*.py"):
        read |= set(re.findall(r'"(STACKMGR_[A-Z_]*[A-Z])"', path.read_text()))
    assert read
    named = set(NAME.findall(EXAMPLE.read_text()))
    assert read <= named
    assert {name.removesuffix("_FILE") for name in named} <= read


def test_the_example_says_what_the_defaults_are():
    commented = dict(re.findall(r"^#([A-Z_]+)=(.*)$", EXAMPLE.read_text(), re.MULTILINE))
    settings = stackmgr.settings.from_environ({"STACKMGR_DATABASE_URL": "postgresql://"})
    assert commented["STACKMGR_THREADS"] == str(settings.threads)
    assert commented["STACKMGR_DATABASE_TIMEOUT"] == str(settings.database_timeout)
    assert commented["STACKMGR_VERIFIER"] == settings.verifier
    assert commented["STACKMGR_LOG_LEVEL"] == settings.log_level
    assert commented["STACKMGR_LOG_FORMAT"] == settings.log_format


def test_sh_reads_the_example_as_systemd_does():
    """An operator sources it for `stackmgr migrate`; every line is a comment or one plain assignment."""
    lines = [line for line in EXAMPLE.read_text().splitlines() if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Z_]+=('[^']*'|[\w.:/-]*)", line) for line in lines)
    script = f'set -eu; . {EXAMPLE}; printf %s "$STACKMGR_DATABASE_URL"'
    sourced = subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, check=True).stdout
    assert sourced.startswith("postgresql://stackmgr_service:PASSWORD@")
    assert "&sslmode=verify-full&" in sourced


def printed_commands() -> list[str]:
    """Return what the runbook prints after `stackmgr`, but for what asks for help or is left open."""
    found = re.findall(
        r"(?:^    |`)(?:RELEASE=\$V )?stackmgr (\w[^`\n#]*)", RUNBOOK.read_text(), re.MULTILINE
    )
    return sorted({command for command in found if not command.endswith(("--help", "..."))})


@pytest.mark.parametrize("command", printed_commands())
def test_the_command_takes_what_the_runbook_prints(command):
    arguments = shlex.split(re.sub(r"\b(KEY_ID|UUID)\b", str(uuid4()), command))
    assert cli._parser().parse_args(arguments).run
