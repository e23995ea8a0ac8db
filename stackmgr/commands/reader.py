"""Read-only database access for commands: the role stackmgr_reader, in one read-only transaction.

The operator's login and any other that was granted stackmgr_reader may run these commands.
Nothing outlives the transaction (`SET LOCAL`, no prepared statement), so that it works through a transaction
pooler.  Every statement of a transaction sees the same snapshot.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import IsolationLevel, errors
from psycopg.raw_cursor import RawCursor, RawServerCursor

from stackmgr.commands.common import database_url
from stackmgr.database.connection import Row
from stackmgr.database.statements import Statement
from stackmgr.errors import CommandError

_CONNECT_TIMEOUT_SECONDS = 5
_FETCHED_ROWS = 2000

_AS_READER = b"SET LOCAL ROLE stackmgr_reader"

# A login or a database may limit a statement to the time of a request; a scan of a large table takes longer.
# It may also name other schemas first, and compile a statement for longer than it runs.
_SETTINGS = b"SET LOCAL statement_timeout = 0; SET LOCAL search_path = pg_catalog; SET LOCAL jit = off"

NEEDS_READER = "Reads only: needs a login that may assume stackmgr_reader."


class Reader:
    """One read-only transaction."""

    def __init__(self, connection: psycopg.Connection[Row]) -> None:
        self._connection = connection

    def rows(self, statement: Statement, parameters: Mapping[str, Any]) -> list[Row]:
        """Run *statement* and return its rows."""
        values = [parameters[name] for name in statement.parameters]
        return RawCursor(self._connection).execute(statement.text, values, binary=True).fetchall()

    def iterate(self, statement: Statement, parameters: Mapping[str, Any]) -> Iterator[Row]:
        """Run *statement* and yield its rows, holding a few thousand of them at a time."""
        values = [parameters[name] for name in statement.parameters]
        with RawServerCursor(self._connection, statement.name) as cursor:
            cursor.itersize = _FETCHED_ROWS
            yield from cursor.execute(statement.text, values, binary=True)


@contextmanager
def connected() -> Iterator[psycopg.Connection[Row]]:
    """Connect to the database of the environment.  Raises CommandError for every failure in the block."""
    try:
        connection = psycopg.connect(
            database_url(),
            connect_timeout=_CONNECT_TIMEOUT_SECONDS,
            application_name="stackmgr",
            client_encoding="UTF8",
            prepare_threshold=None,
        )
    except psycopg.OperationalError as ex:
        raise CommandError(f"the database cannot be reached: {' '.join(str(ex).split())}") from ex
    connection.read_only = True
    connection.isolation_level = IsolationLevel.REPEATABLE_READ
    try:
        with connection:
            yield connection
    except psycopg.Error as ex:
        raise CommandError(_explanation(ex)) from ex


@contextmanager
def transaction(connection: psycopg.Connection[Row]) -> Iterator[Reader]:
    """Open a read-only transaction with the rights of stackmgr_reader."""
    with connection.transaction():
        try:
            connection.execute(_AS_READER)
        except errors.InsufficientPrivilege as ex:
            login = connection.info.user
            raise CommandError(f"{login} may not read: GRANT stackmgr_reader TO {login}") from ex
        connection.execute(_SETTINGS)
        yield Reader(connection)


@contextmanager
def reading() -> Iterator[Reader]:
    """Connect and open the one transaction that most commands need.  Raises CommandError."""
    with connected() as connection, transaction(connection) as reader:
        yield reader


def _explanation(ex: psycopg.Error) -> str:
    """Return what an operator can do about *ex*, in words and without a secret."""
    # In a cluster whose other databases have the role, an older schema has not granted it anything.
    if isinstance(
        ex,
        errors.UndefinedTable
        | errors.InvalidSchemaName
        | errors.UndefinedColumn
        | errors.InsufficientPrivilege,
    ):
        return "the database has no schema of this release: run 'stackmgr migrate' first"
    if isinstance(ex, errors.InvalidParameterValue):
        return "the role stackmgr_reader does not exist: run 'stackmgr migrate' first"
    return (
        f"the database refused or did not respond ({ex.sqlstate or 'connection lost'}); see 'stackmgr check'"
    )
