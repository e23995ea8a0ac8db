"""What the operator's commands share: a session, argument types, output.

Each module adds its commands to the parser of `stackmgr.cli`.  Text is for people; `--json` is for scripts,
one document on standard output, times in UTC.
"""

import argparse
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, TypeAlias
from uuid import UUID

from stackmgr import settings
from stackmgr.database.conninfo import INVALID_DATABASE_URL, is_conninfo
from stackmgr.database.pool import DEADLINE, Database
from stackmgr.database.session import Session

# argparse has no public name for it.
Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # noqa: SLF001

_LONGEST_LABEL = 200


class CommandError(Exception):
    """The command cannot be carried out; the message says why in words."""


def database_url() -> str:
    """Return the connection string of the environment.  Raises CommandError."""
    problems: list[str] = []
    url = settings.secret(os.environ, "STACKMGR_DATABASE_URL", problems)
    if problems:
        raise CommandError(problems[0])
    if not url:
        raise CommandError(settings.NO_DATABASE_URL)
    if not is_conninfo(url):
        raise CommandError(INVALID_DATABASE_URL)
    return url


@contextmanager
def operator_session(*, deadline: float = DEADLINE) -> Iterator[Session]:
    """Open a session with the owner's rights, and *deadline* seconds for the database."""
    database = Database(database_url(), role="stackmgr_owner", pool_size=1, deadline=deadline)
    database.open()
    try:
        with database.session() as session:
            yield session
    finally:
        database.close()


def canonical_uuid(text: str) -> str:
    """Return *text* if it is a UUID as the service writes them."""
    try:
        canonical = str(UUID(text))
    except ValueError:
        canonical = ""
    if text != canonical:
        raise argparse.ArgumentTypeError("must be a UUID in lowercase with hyphens")
    return text


def future(text: str) -> datetime:
    """Return the time that *text* names, if it is yet to come."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as ex:
        raise argparse.ArgumentTypeError("must be an ISO 8601 time such as 2027-01-31T00:00:00Z") from ex
    if moment.tzinfo is None:
        raise argparse.ArgumentTypeError("needs an offset from UTC, such as Z or +02:00")
    try:
        # In UTC, in which it is read back: an offset can carry it past the last year that has a date.
        moment = moment.astimezone(UTC)
    except OverflowError as ex:
        raise argparse.ArgumentTypeError("is not between the years 1 and 9999 in UTC") from ex
    if moment <= datetime.now(UTC):
        raise argparse.ArgumentTypeError("lies in the past")
    return moment


def label(text: str) -> str:
    """Return *text* if it can stand in a column of a list."""
    if not text.isprintable():
        raise argparse.ArgumentTypeError("must be printable text on one line, without tabs")
    if len(text) > _LONGEST_LABEL:
        raise argparse.ArgumentTypeError(f"must have at most {_LONGEST_LABEL} characters")
    return text


def moment(value: datetime | None) -> str | None:
    """Return a time as the commands print it."""
    return None if value is None else value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def print_json(document: Any) -> None:
    """Print one JSON document."""
    print(json.dumps(document, indent=2))


def print_table(head: tuple[str, ...], rows: list[tuple[str | None, ...]]) -> None:
    """Print columns separated by tabs, with a dash for what there is not."""
    for row in (head, *rows):
        print("\t".join(field or "-" for field in row))
