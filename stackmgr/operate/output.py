"""The commands' output: tables, one JSON document with `--json`, pages of long lists, times in UTC."""

import argparse
import io
import itertools
import json
import os
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from stackmgr.errors import CommandError
from stackmgr.operate.command import add_json, canonical_uuid, whole_number

# Aligned together on a terminal; a longer table is printed in blocks.
_BLOCK_ROWS = 1000

T = TypeVar("T")


def accept_any_text() -> None:
    """Let standard output and standard error take every character, whatever their encoding."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def discard() -> None:
    """Drop output that cannot be written: Python would try again at its exit, with a message of its own."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def moment(value: datetime | None) -> str | None:
    """Return a time as the commands print it."""
    # Not strftime, whose years before 1000 have fewer than four digits.
    return (
        None if value is None else f"{value.astimezone(UTC).replace(tzinfo=None).isoformat('T', 'seconds')}Z"
    )


def printable(text: str) -> str:
    """Return *text* on one line, without a character that a terminal acts on."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def print_json(document: Any) -> None:
    """Print one JSON document."""
    print(json.dumps(document, indent=2))


def print_note(text: str) -> None:
    """Print a sentence for a person beside the output, on standard error."""
    if sys.stderr is not None:  # otherwise it would go to standard output
        print(text, file=sys.stderr, flush=True)


def print_table(rows: Iterable[Sequence[str | None]]) -> None:
    """Print aligned columns on a terminal, tab-separated ones elsewhere, with a dash for an empty field."""
    lines = ([field or "-" for field in row] for row in rows)
    while block := list(itertools.islice(lines, _BLOCK_ROWS)):
        if not sys.stdout.isatty():
            print("\n".join(map("\t".join, block)))
            continue
        widths = [max(map(len, column)) for column in zip(*block, strict=True)]
        for line in block:
            fields = (field.ljust(width) for field, width in zip(line, widths, strict=True))
            print("  ".join(fields).rstrip())


def print_documents(arguments: argparse.Namespace, documents: Sequence[dict[str, Any]]) -> None:
    """Print documents of the same fields as a table, or with `--json` as they are."""
    if arguments.json:
        print_json(documents)
    else:
        print_table(_with_head(documents))


def add_page(parser: argparse.ArgumentParser, metavar: str) -> None:
    """Add the options of a list whose rows have the id *metavar*."""
    parser.add_argument(
        "--after", type=canonical_uuid, metavar=metavar, help="continue an earlier list after this row"
    )
    parser.add_argument("--limit", type=whole_number(1, 1_000_000), metavar="N", help="rows (default all)")
    add_json(parser)


def print_page(
    arguments: argparse.Namespace,
    read: Callable[[str | None, int | None], Iterator[T]],
    document_of: Callable[[T], dict[str, Any]],
) -> None:
    """Print the part of a list that `--after` and `--limit` name, a few rows at a time.

    *read* returns so many rows from the one with an id on.  *document_of* returns the fields of a row, first
    its id.  Raises CommandError if no row has the id of `--after`.
    """
    extra = 1 if arguments.after is None else 2
    rows = read(arguments.after, None if arguments.limit is None else arguments.limit + extra)
    if arguments.after is not None and next(rows, None) is None:
        raise CommandError(f"the list has no {arguments.after}")
    documents, last = map(document_of, itertools.islice(rows, arguments.limit)), ""

    def shown() -> Iterator[dict[str, Any]]:
        nonlocal last
        for document in documents:
            last = next(iter(document.values()))
            yield document

    if arguments.json:
        _print_items(shown(), lambda: next(rows, None) is not None)
        return
    print_table(_with_head(shown()))
    if next(rows, None) is not None:
        print_note(f"There are more: --after {last} continues.")


def _with_head(documents: Iterable[dict[str, Any]]) -> Iterator[Sequence[str | None]]:
    for number, document in enumerate(documents):
        if number == 0:
            yield [name.upper() for name in document]
        yield list(document.values())


def _print_items(documents: Iterable[dict[str, Any]], has_more: Callable[[], bool]) -> None:
    print('{\n  "items": [', end="")
    separator = end = ""
    for document in documents:
        print(separator, textwrap.indent(json.dumps(document, indent=2), "    "), sep="\n", end="")
        separator, end = ",", "\n  "
    print(f'{end}],\n  "has_more": {json.dumps(has_more())}\n}}')
