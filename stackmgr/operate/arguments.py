"""Types of the commands' arguments, as argparse takes them."""

import argparse
import re
from collections.abc import Callable
from datetime import UTC, datetime

from stackmgr.limits import CANONICAL_UUID

_LONGEST_LABEL = 200
# Bounded, because int() refuses thousands of digits with an error of its own.
_DIGITS = re.compile(r"[0-9]{1,9}")
_UUID = re.compile(CANONICAL_UUID)


def canonical_uuid(text: str) -> str:
    """Return the hyphenated UUID *text*, in either case, as the service writes it."""
    canonical = text.lower()
    if not _UUID.fullmatch(canonical):
        raise argparse.ArgumentTypeError("must be a UUID with hyphens")
    return canonical


def instant(text: str) -> datetime:
    """Return the time that *text* names, in UTC."""
    try:
        named = datetime.fromisoformat(text)
    except ValueError as ex:
        raise argparse.ArgumentTypeError("must be an ISO 8601 time such as 2027-01-31T00:00:00Z") from ex
    if named.tzinfo is None:
        raise argparse.ArgumentTypeError("needs an offset from UTC, such as Z or +02:00")
    try:
        # An offset can carry it past the years that have a date.
        return named.astimezone(UTC)
    except OverflowError as ex:
        raise argparse.ArgumentTypeError("is not between the years 1 and 9999 in UTC") from ex


def future(text: str) -> datetime:
    """Return the time that *text* names, if it is in the future."""
    named = instant(text)
    if named <= datetime.now(UTC):
        raise argparse.ArgumentTypeError("is in the past")
    return named


def whole_number(smallest: int, largest: int) -> Callable[[str], int]:
    """Return the type of a whole number in decimal digits."""

    def parse(text: str) -> int:
        if not (_DIGITS.fullmatch(text) and smallest <= int(text) <= largest):
            raise argparse.ArgumentTypeError(f"must be a whole number from {smallest} to {largest}")
        return int(text)

    return parse


row_limit = whole_number(1, 1_000_000)


def unicode_text(text: str) -> str:
    """Return *text* if it is valid in the encoding of the shell."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as ex:
        raise argparse.ArgumentTypeError("is not valid in the encoding of this shell") from ex
    return text


def label(text: str) -> str:
    """Return *text* if it can stand in a column of a list."""
    if not text.isprintable():
        raise argparse.ArgumentTypeError("must be printable text on one line, without tabs")
    if len(text) > _LONGEST_LABEL:
        raise argparse.ArgumentTypeError(f"must have at most {_LONGEST_LABEL} characters")
    return text
