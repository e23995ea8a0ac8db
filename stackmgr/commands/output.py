"""The commands' output: tables, one JSON document with `--json`, times in UTC."""

import json
import os
import sys
import unicodedata
from datetime import UTC, datetime
from typing import Any


def moment(value: datetime | None) -> str | None:
    """Return a time as the commands print it."""
    # Not strftime, whose years before 1000 have fewer than four digits.
    return (
        None if value is None else f"{value.astimezone(UTC).replace(tzinfo=None).isoformat('T', 'seconds')}Z"
    )


def print_json(document: Any) -> None:
    """Print one JSON document."""
    print(json.dumps(document, indent=2))


def percent(weight_bps: int) -> str:
    """Return a weight in basis points as a percentage, as `12.5 %`."""
    return f"{weight_bps / 100:g} %"


def printable(text: str) -> str:
    """Return *text* on one line, without a character that a terminal acts on."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def _width(text: str) -> int:
    """Return the columns that *text* takes on a terminal."""
    return sum(
        0 if unicodedata.combining(each) else 2 if unicodedata.east_asian_width(each) in "WF" else 1
        for each in text
    )


def print_table(head: tuple[str, ...], rows: list[tuple[str | None, ...]]) -> None:
    """Print aligned columns on a terminal, tab-separated ones elsewhere, with a dash for an empty field."""
    lines = [[field or "-" for field in row] for row in (head, *rows)]
    if not sys.stdout.isatty():
        for line in lines:
            print("\t".join(line))
        return
    widths = [max(map(_width, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        fields = (field + " " * (width - _width(field)) for field, width in zip(line, widths, strict=True))
        print("  ".join(fields).rstrip())


def print_note(text: str) -> None:
    """Print a sentence for a person beside the output, on standard error."""
    if sys.stderr is not None:  # otherwise it would go to standard output
        print(text, file=sys.stderr, flush=True)


def discard() -> None:
    """Drop output that cannot be written: Python would try again at its exit, with a message of its own."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
