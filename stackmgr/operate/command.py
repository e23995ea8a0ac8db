"""Parts that commands share: their form in argparse, types of arguments, the connection string."""

import argparse
import os
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from stackmgr import settings
from stackmgr.limits import CANONICAL_UUID

# The exit status of a command that found something: a problem, a difference, a rejected key.
FOUND = 3

# What `--help` says about the environment.
DATABASE = "Reads STACKMGR_DATABASE_URL, or STACKMGR_DATABASE_URL_FILE."
TOKENS = "Reads STACKMGR_TOKENS."
EVERYTHING = "Reads the whole environment that 'stackmgr --help' lists."

NEEDS_READER = "Needs a login that may assume stackmgr_reader."

_LONGEST_LABEL = 200
_DATE = re.compile(r"\d{4}-\d\d-\d\dZ?")

Commands = Any  # argparse's action that add_subparsers returns


def exit_statuses(found: str = "") -> str:
    """Return the sentence of `--help` on exit statuses; *found* says what status 3 means."""
    last = f", {FOUND} {found}" if found else ""
    return f"Exit status: 0 done, 1 the command could not run, 2 wrong usage{last}."


def add_group(commands: Commands, name: str, summary: str, reads: str = DATABASE) -> Commands:
    """Add a group of commands, and return the action that its commands are added to."""
    epilog = f"{exit_statuses()} {reads}"
    group = commands.add_parser(name, help=summary, description=_sentence(summary), epilog=epilog)
    return group.add_subparsers(required=True, metavar="COMMAND")


def add_command(  # noqa: PLR0913 - by keyword
    commands: Commands,
    name: str,
    summary: str,
    run: Callable[[argparse.Namespace], None],
    *,
    reads: str = DATABASE,
    more: str = "",
    found: str = "",
    unexpected: str = "",
    has_json: bool = True,
) -> argparse.ArgumentParser:
    """Add a command and return its parser.  *unexpected* is the message for further arguments."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=f"{_sentence(summary)} {more}".rstrip(),
        epilog=f"{exit_statuses(found)} {reads}",
    )
    parser.set_defaults(run=run, error=parser.error, unexpected=unexpected)
    if has_json:
        parser.add_argument("--json", action="store_true", help="print one JSON document")
    return parser


def _sentence(summary: str) -> str:
    return f"{summary[:1].upper()}{summary[1:]}."


def canonical_uuid(text: str) -> str:
    """Return the hyphenated UUID *text*, in either case, as the service writes it."""
    canonical = text.lower()
    if not re.fullmatch(CANONICAL_UUID, canonical):
        raise argparse.ArgumentTypeError("must be a UUID with hyphens")
    return canonical


def future(text: str) -> datetime:
    """Return the time that *text* names, in UTC, if it is in the future."""
    try:
        # A date is its beginning.
        named = datetime.fromisoformat(f"{text[:10]}T00:00Z" if _DATE.fullmatch(text) else text)
    except ValueError as ex:
        raise argparse.ArgumentTypeError("must be an ISO 8601 time such as 2027-01-31T00:00:00Z") from ex
    if named.tzinfo is None:
        raise argparse.ArgumentTypeError("needs an offset from UTC, such as Z or +02:00")
    try:
        # An offset can carry it past the years that have a date.
        named = named.astimezone(UTC)
    except OverflowError as ex:
        raise argparse.ArgumentTypeError("is not between the years 1 and 9999 in UTC") from ex
    if named <= datetime.now(UTC):
        raise argparse.ArgumentTypeError("is in the past")
    return named


def whole_number(smallest: int, largest: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not (settings.COUNT.fullmatch(text) and smallest <= int(text) <= largest):
            raise argparse.ArgumentTypeError(f"must be a whole number from {smallest} to {largest}")
        return int(text)

    return parse


def label(text: str) -> str:
    """Return *text* if it can stand in a column of a list."""
    if not text.isprintable():
        raise argparse.ArgumentTypeError("must be printable text on one line, without tabs")
    if len(text) > _LONGEST_LABEL:
        raise argparse.ArgumentTypeError(f"must have at most {_LONGEST_LABEL} characters")
    return text


def database_url() -> str:
    """Return the connection string of the environment.  Raises SettingsError."""
    problems: list[str] = []
    url: str = settings.OPTIONS["database_url"].read(os.environ, problems)
    if problems:
        raise settings.SettingsError(problems)
    return url
