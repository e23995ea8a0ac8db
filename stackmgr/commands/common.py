"""What the commands share: the connection string, exit statuses, and how `--help` states them."""

import argparse
import os
from collections.abc import Iterator
from typing import TypeAlias

from stackmgr import settings
from stackmgr.database.conninfo import INVALID_DATABASE_URL, is_conninfo
from stackmgr.errors import CommandError

# argparse has no public name for it.
Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # noqa: SLF001


NEEDS_READER = "Reads only: needs a login that may assume stackmgr_reader."

# The exit status of a command that ran and found something: a fault, a difference, a rejected key.
FOUND = 3


def exit_statuses(found: str | None = None) -> str:
    """Return the sentence of `--help` on exit statuses; *found* says what 3 means, if the command has it."""
    last = f", {FOUND} {found}" if found else ""
    return f"Exit status: 0 done, 1 the command could not run, 2 wrong usage{last}."


def subcommands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield the summary and the parser of each command directly below *parser*."""
    for action in parser._actions:  # noqa: SLF001
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for listed in action._choices_actions:  # noqa: SLF001
                yield listed.help or "", action.choices[listed.dest]


def database_url() -> str:
    """Return the connection string of the environment.  Raises CommandError."""
    problems: list[str] = []
    url: str = settings.OPTIONS["database_url"].read(os.environ, problems)
    if problems:
        raise CommandError(problems[0])
    if not is_conninfo(url):
        raise CommandError(INVALID_DATABASE_URL)
    return url
