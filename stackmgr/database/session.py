"""A session: one request's use of the database, within one deadline.

Every operation is one statement in autocommit: atomic, without an open transaction, one round
trip.  A read of few rows shares its round trip with other requests.  For any other statement the
session acquires a connection and keeps it to the end of the request.
"""

import itertools
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Self

from stackmgr.database import retries
from stackmgr.database.connection import DatabaseConnection, Parameters, Row, execution
from stackmgr.database.retries import RetryAction
from stackmgr.database.shared_reads import Connections
from stackmgr.database.statements import Statement
from stackmgr.errors import DatabaseError
from stackmgr.settings import Settings

# Seconds that one session may wait for the database, unless it is given another number.
SESSION_SECONDS = float(Settings.database_timeout)


class Planned(NamedTuple):
    """A statement of a request without the parameters of its caller; `row` names its columns.

    It returns at most `max_rows`; None if its rows are large.
    """

    statement: Statement
    parameters: Mapping[str, Any]
    row: Callable[..., Any]
    max_rows: int | None = 1


class Session:
    """One request's use of the database.  Not for use by two greenlets or threads at once.

    The deadline counts time spent on the database, not on a client's body or a remote verifier.
    """

    __slots__ = ("_connection", "_connections", "_seconds_left")

    def __init__(self, connections: Connections, seconds: float) -> None:
        self._connections = connections
        self._seconds_left = seconds
        self._connection: DatabaseConnection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def has_variants(self) -> bool:
        """Whether statements run in variants, which verify no key: see sql/citus."""
        return bool(self._connections.variants)

    def row(self, statement: Statement, parameters: Parameters, *, max_rows: int | None = None) -> Row | None:
        """Run *statement* and return its first row, or None.  See `rows`."""
        rows = self.rows(statement, parameters, max_rows=max_rows)
        return rows[0] if rows else None

    def rows(self, statement: Statement, parameters: Parameters, *, max_rows: int | None = None) -> list[Row]:
        """Run *statement* and return all its rows.  Raises DatabaseError.

        A read that is known to return at most *max_rows* may share its round trip.
        """
        statement = self._connections.variants.get(statement.name, statement)
        deadline = time.monotonic() + self._seconds_left
        try:
            if max_rows is not None and not statement.writes and self._connection is None:
                read = execution(statement, parameters)
                rows = self._connections.shared_reads.run(read, deadline, max_rows=max_rows)
                if rows is not None:
                    return rows
            for attempt in itertools.count(1):
                try:
                    return self._run(statement, parameters, deadline)
                except DatabaseError as ex:
                    if not retries.should_retry(ex, writes=statement.writes, attempts=attempt):
                        raise
            raise AssertionError("unreachable")
        finally:
            self._seconds_left = deadline - time.monotonic()

    def close(self) -> None:
        """Release the connection.  A closed session may be used again and acquires another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._connections.release(connection)

    def _run(self, statement: Statement, parameters: Parameters, deadline: float) -> list[Row]:
        if self._connection is not None and statement.writes and self._connection.is_stale():
            # It died since the last statement: a read would run again, but a write may not.
            self.close()
        if self._connection is None:
            self._connection = self._connections.acquire(deadline)
        try:
            return self._connection.run(statement, parameters, deadline)
        except DatabaseError as ex:
            if retries.retry_action(ex) is RetryAction.RECONNECT_ALL:
                self._connections.drain()
            if self._connection.closed:
                self.close()
            raise
