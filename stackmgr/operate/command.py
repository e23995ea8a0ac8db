"""How a command is declared, and the parser that argparse makes of the declarations.

Each module of a command has one `COMMAND`, beside the function that runs it.
"""

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from stackmgr import settings
from stackmgr.database.conninfo import INVALID_DATABASE_URL, is_conninfo
from stackmgr.errors import CommandError

# The exit status of a command that ran and found something: a fault, a difference, a rejected key.
FOUND = 3

# What `--help` says of the environment.
NOTHING = "Reads no STACKMGR_* variable."
DATABASE = "Reads STACKMGR_DATABASE_URL, or STACKMGR_DATABASE_URL_FILE."
TOKENS = "Reads STACKMGR_TOKENS."
TOKENS_AND_DATABASE = "Reads STACKMGR_TOKENS, and STACKMGR_DATABASE_URL or STACKMGR_DATABASE_URL_FILE."
EVERYTHING = "Reads the whole environment that 'stackmgr --help' lists."

NEEDS_READER = "Reads only: needs a login that may assume stackmgr_reader."


@dataclass(frozen=True)
class Argument:
    """What `argparse.ArgumentParser.add_argument` is called with."""

    names: tuple[str, ...]
    options: dict[str, Any]


def argument(*names: str, **options: Any) -> Argument:
    """Return an argument of a command; the parameters are those of argparse's `add_argument`."""
    return Argument(names, options)


_JSON = argument("--json", action="store_true", help="print one JSON document")


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command, or a group of *commands*.

    *description* is that of `--help`, by default the summary.  *reads* states the environment, by default
    that of the group.  *found* says what exit status 3 means, if the command has it.
    *unexpected* is the message for further arguments.
    """

    name: str
    summary: str
    description: str = ""
    reads: str = ""
    found: str = ""
    run: Callable[[argparse.Namespace], None] | None = None
    arguments: Sequence[Argument] = ()
    has_json: bool = True
    unexpected: str = ""
    commands: Sequence["Command"] = field(default=())

    @property
    def purpose(self) -> str:
        """The description, or the summary as a sentence."""
        return self.description or f"{self.summary[:1].upper()}{self.summary[1:]}."


def exit_statuses(found: str = "") -> str:
    """Return the sentence of `--help` on exit statuses."""
    last = f", {FOUND} {found}" if found else ""
    return f"Exit status: 0 done, 1 the command could not run, 2 wrong usage{last}."


def add_commands(parser: argparse.ArgumentParser, commands: Sequence[Command], reads: str = "") -> None:
    """Add *commands* to *parser*."""
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in commands:
        environment = command.reads or reads
        added = subparsers.add_parser(
            command.name,
            help=command.summary,
            description=command.purpose,
            epilog=f"{exit_statuses(command.found)} {environment}",
        )
        if command.commands:
            add_commands(added, command.commands, environment)
        else:
            _add_arguments(added, command)


def _add_arguments(parser: argparse.ArgumentParser, command: Command) -> None:
    for each in [*command.arguments, *([_JSON] if command.has_json else [])]:
        parser.add_argument(*each.names, **each.options)
    parser.set_defaults(run=command.run, error=parser.error, unexpected=command.unexpected)


def database_url() -> str:
    """Return the connection string of the environment.  Raises CommandError."""
    problems: list[str] = []
    url: str = settings.OPTIONS["database_url"].read(os.environ, problems)
    if problems:
        raise CommandError(problems[0])
    if not is_conninfo(url):
        raise CommandError(INVALID_DATABASE_URL)
    return url
