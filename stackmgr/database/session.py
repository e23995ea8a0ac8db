"""A session: one request's use of the database, within one deadline.

Every operation is one statement in autocommit: it is atomic by itself, leaves no transaction open, and
costs one round trip, which a read shares with the verification of its key.  The session takes a connection
when the first statement needs one and keeps it to the end of the request, so that verifying the key and
doing the work share one checkout.
"""

import itertools
import time
from collections.abc import Callable
from typing import Protocol, Self

from stackmgr.database import retries
from stackmgr.database.connection import DatabaseConnection, Parameters, Query, Row
from stackmgr.database.statements import Statement
from stackmgr.errors import DatabaseError


class Observer(Protocol):
    """Told of each use of the database; times are in seconds."""

    def statement(self, name: str, seconds: float) -> None:
        """A statement was run, well or not."""

    def acquired(self, seconds: float) -> None:
        """A connection was taken from the pool, after a wait."""

    def released(self) -> None:
        """A connection came back."""


class Connections(Protocol):
    """What a session needs of the pool; see `Database`."""

    observer: Observer | None

    def acquire(self, deadline: float) -> DatabaseConnection:
        """Return a live connection.  Raises DatabaseError."""

    def release(self, connection: DatabaseConnection) -> None:
        """Return a connection that `acquire` gave."""

    def drain(self) -> None:
        """Have every connection replaced by a new one."""


class Session:
    """One request's use of the database.  Not for use by two threads at once.

    Its deadline runs while it waits for the database, and stands still while the caller sends a body,
    or a verifier elsewhere is asked.

    `prefetch_query`, if set, returns for a manager's id the query that will be asked next; whoever can guess
    the manager passes it on as *prefetch*.  The rows that come of it wait for exactly that query.
    """

    __slots__ = ("_connection", "_database", "_left", "_waiting", "prefetch_query")

    def __init__(self, database: Connections, seconds: float) -> None:
        self._database = database
        self._left = seconds
        self._connection: DatabaseConnection | None = None
        self._waiting: tuple[Query, list[Row]] | None = None
        self.prefetch_query: Callable[[str], Query] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def row(self, statement: Statement, parameters: Parameters, prefetch: Query | None = None) -> Row | None:
        """Run *statement* and return its first row, or None.  Raises DatabaseError."""
        rows = self.rows(statement, parameters, prefetch)
        return rows[0] if rows else None

    def rows(self, statement: Statement, parameters: Parameters, prefetch: Query | None = None) -> list[Row]:
        """Run *statement* and return all its rows.  Raises DatabaseError.

        *prefetch*, which is to write nothing, goes with it; if it fails, it was not asked.
        """
        waiting, self._waiting = self._waiting, None
        if waiting is not None and waiting[0] == (statement, parameters):
            return waiting[1]
        deadline = time.monotonic() + self._left
        try:
            for attempt in itertools.count(1):
                try:
                    return self._run(statement, parameters, prefetch, deadline)
                except DatabaseError as ex:
                    if not retries.should_retry(ex, writes=statement.writes, attempts=attempt):
                        raise
            raise AssertionError("unreachable")
        finally:
            self._left = deadline - time.monotonic()

    def close(self) -> None:
        """Give the connection back; the session may be used again and then takes another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._database.release(connection)

    def _run(
        self, statement: Statement, parameters: Parameters, prefetch: Query | None, deadline: float
    ) -> list[Row]:
        if self._connection is not None and statement.writes and self._connection.is_stale():
            # It died since the last statement.  A read would find out and run again; a write may not.
            self._connection.close()
            self.close()
        if self._connection is None:
            self._connection = self._database.acquire(deadline)
        observer = self._database.observer
        started = time.perf_counter() if observer else 0.0
        try:
            if prefetch is None:
                rows = self._connection.run(statement, parameters, deadline)
            else:
                rows, others = self._connection.run_with_prefetch(statement, parameters, prefetch, deadline)
                self._waiting = None if others is None else (prefetch, others)
        except DatabaseError as ex:
            if retries.retry_action(ex) is retries.RetryAction.RECONNECT_ALL:
                self._database.drain()
            raise
        else:
            return rows
        finally:
            if observer is not None:
                observer.statement(statement.name, time.perf_counter() - started)
                if self._waiting is not None:
                    observer.statement(self._waiting[0][0].name, time.perf_counter() - started)
            if self._connection.closed:
                self.close()
