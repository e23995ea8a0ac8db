"""What the operator's commands share: an error, the connection string, a session as owner."""

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

import psycopg

from stackmgr import settings
from stackmgr.database import migrations
from stackmgr.database.conninfo import INVALID_DATABASE_URL, is_conninfo
from stackmgr.database.pool import DEADLINE, Database
from stackmgr.database.session import Session
from stackmgr.database.time_limit import time_limit
from stackmgr.errors import CommandError

# argparse has no public name for it.
Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # noqa: SLF001


_CONNECT_SECONDS = 5.0
_AS_OWNER = b"SET ROLE stackmgr_owner"

NO_SCHEMA = "the database has no schema for this yet: run 'stackmgr migrate' first"

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


def _require_owner(url: str) -> None:
    """Raise CommandError, with the reason, unless a connection can be opened that may become the owner."""
    try:
        with time_limit(_CONNECT_SECONDS), psycopg.connect(url, autocommit=True) as connection:
            connection.execute(_AS_OWNER)
    except psycopg.errors.InsufficientPrivilege as ex:
        raise CommandError(migrations.NOT_THE_OWNER) from ex
    except psycopg.errors.InvalidParameterValue as ex:
        raise CommandError(NO_SCHEMA) from ex
    except (psycopg.OperationalError, TimeoutError) as ex:
        raise CommandError(f"the database cannot be reached: {' '.join(str(ex).split())}") from ex


@contextmanager
def operator_session(*, deadline: float = DEADLINE) -> Iterator[Session]:
    """Open a session with the owner's rights, and *deadline* seconds for the database.

    Raises CommandError within five seconds if the login is not an operator's or the database is unreachable.
    """
    url = database_url()
    _require_owner(url)
    database = Database(url, role="stackmgr_owner", pool_size=1, deadline=deadline)
    database.open()
    try:
        with database.session() as session:
            yield session
    finally:
        database.close()
