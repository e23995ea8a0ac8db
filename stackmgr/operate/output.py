"""The commands' output: tables, one JSON document with `--json`, times in UTC."""

import argparse
import io
import itertools
import json
import os
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

# Aligned together on a terminal; a longer table is printed in blocks.
_BLOCK_ROWS = 1000


def accept_any_text() -> None:
    """Let standard output and standard error take every character, whatever their encoding."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


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
