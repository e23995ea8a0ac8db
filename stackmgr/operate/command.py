"""Parts that commands share: their form in argparse, types of arguments, output with times in UTC."""

import argparse
import io
import itertools
import json
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
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

# Aligned together on a terminal; a longer table is printed in blocks.
_BLOCK_ROWS = 1000

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


def accept_any_text() -> None:
    """Let standard output take every character, whatever its encoding, as standard error does."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def discard() -> None:
    """Drop output that cannot be written: Python would retry at its exit, with a message."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def moment(value: datetime | None) -> str | None:
    # Not strftime, whose years before 1000 have fewer than four digits.
    return f"{value.astimezone(UTC).replace(tzinfo=None).isoformat('T', 'seconds')}Z" if value else None


def document(row: Any) -> dict[str, Any]:
    """Return the members of a named tuple, with times as the commands print them."""
    members = row._asdict().items()
    return {name: moment(value) if isinstance(value, datetime) else value for name, value in members}


def printable(text: str) -> str:
    """Return *text* on one line, without a character that a terminal acts on."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def print_json(document: Any) -> None:
    print(json.dumps(document, indent=2))


def print_note(text: str) -> None:
    """Print a sentence for a person beside the output, on standard error."""
    if sys.stderr is not None:  # otherwise it would go to standard output
        print(text, file=sys.stderr, flush=True)


def print_table(rows: Iterable[Sequence[str | None]]) -> None:
    """Print columns, aligned on a terminal, else tab-separated; a dash is an empty field."""
    lines = ([field or "-" for field in row] for row in rows)
    while block := list(itertools.islice(lines, _BLOCK_ROWS)):
        if not sys.stdout.isatty():
            print("\n".join(map("\t".join, block)))
            continue
        widths = [max(map(len, column)) for column in zip(*block, strict=True)]
        for line in block:
            fields = (field.ljust(width) for field, width in zip(line, widths, strict=True))
            print("  ".join(fields).rstrip())


def print_documents(arguments: argparse.Namespace, documents: Iterable[dict[str, Any]]) -> None:
    """Print documents with the same fields in bounded blocks: a table, or a JSON array."""
    if not arguments.json:
        print_table(_with_head(documents))
        return
    separator, end = "[\n", "[]"
    for document in documents:
        print(separator + textwrap.indent(json.dumps(document, indent=2), "  "), end="")
        separator, end = ",\n", "\n]"
    print(end)


def _with_head(documents: Iterable[dict[str, Any]]) -> Iterator[Sequence[str | None]]:
    for number, document in enumerate(documents):
        if number == 0:
            yield [name.upper() for name in document]
        yield list(document.values())
