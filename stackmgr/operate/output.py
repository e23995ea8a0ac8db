"""The commands' output: tables, one JSON document with `--json`, times in UTC."""

import codecs
import io
import itertools
import json
import os
import sys
import textwrap
import unicodedata
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

# Aligned together on a terminal; a longer table is printed in blocks.
_BLOCK_ROWS = 1000

# What the commands print themselves, for an encoding without it.
_SUBSTITUTES = {"…": "...", "→": "->"}


def _substitute(ex: UnicodeError) -> tuple[str, int]:
    """Return what is printed for the characters that the encoding lacks, and where they end."""
    if not isinstance(ex, UnicodeEncodeError):
        raise ex
    escaped = (
        _SUBSTITUTES.get(each) or each.encode("ascii", "backslashreplace").decode()
        for each in ex.object[ex.start : ex.end]
    )
    return "".join(escaped), ex.end


codecs.register_error("stackmgr", _substitute)


def accept_any_text() -> None:
    """Let standard output and standard error take every character, whatever their encoding."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="stackmgr")


def moment(value: datetime | None) -> str | None:
    """Return a time as the commands print it."""
    # Not strftime, whose years before 1000 have fewer than four digits.
    return (
        None if value is None else f"{value.astimezone(UTC).replace(tzinfo=None).isoformat('T', 'seconds')}Z"
    )


def print_json(document: Any) -> None:
    """Print one JSON document."""
    print(json.dumps(document, indent=2))


def print_json_page(documents: Iterable[Any], has_more: Callable[[], bool]) -> None:
    """Print one JSON document: `items`, one by one, and whether there are more than those."""
    print('{\n  "items": [', end="")
    separator = end = ""
    for document in documents:
        print(separator, textwrap.indent(json.dumps(document, indent=2), "    "), sep="\n", end="")
        separator, end = ",", "\n  "
    print(f'{end}],\n  "has_more": {json.dumps(has_more())}\n}}')


def percent(weight_bps: int) -> str:
    """Return a weight in basis points as a percentage, as `12.5 %`."""
    return f"{weight_bps / 100:g} %"


def printable(text: str) -> str:
    """Return *text* on one line, without a character that a terminal acts on."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def quoted(text: str) -> str:
    """Return *text* in quotation marks, on one line; its letters stay readable."""
    return printable(json.dumps(text, ensure_ascii=False))


def _width(text: str) -> int:
    """Return the columns that *text* takes on a terminal."""
    return sum(
        0 if unicodedata.combining(each) else 2 if unicodedata.east_asian_width(each) in "WF" else 1
        for each in text
    )


def print_table(head: tuple[str, ...], rows: Iterable[tuple[str | None, ...]]) -> None:
    """Print aligned columns on a terminal, tab-separated ones elsewhere, with a dash for an empty field."""
    lines = ([field or "-" for field in row] for row in itertools.chain([head], rows))
    widths = [0] * len(head)
    # The first rows are read before anything is printed: a statement that fails prints no heading.
    while block := list(itertools.islice(lines, _BLOCK_ROWS)):
        if not sys.stdout.isatty():
            print("\n".join(map("\t".join, block)))
            continue
        widths = [max(width, *map(_width, column)) for width, *column in zip(widths, *block, strict=True)]
        for line in block:
            fields = (
                field + " " * (width - _width(field)) for field, width in zip(line, widths, strict=True)
            )
            print("  ".join(fields).rstrip())


def print_note(text: str) -> None:
    """Print a sentence for a person beside the output, on standard error."""
    if sys.stderr is not None:  # otherwise it would go to standard output
        print(text, file=sys.stderr, flush=True)


def discard() -> None:
    """Drop output that cannot be written: Python would try again at its exit, with a message of its own."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
