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
from stackmgr.database.connection import Parameters, Query, Row, ServiceConnection
from stackmgr.database.statements import Statement
from stackmgr.errors import DatabaseError


class Observer(Protocol):
    """Told of each use of the database; times are in seconds."""

    def statement(self, name: str, seconds: float) -> None:
        """A statement was run, well or not."""

    def taken(self, seconds: float) -> None:
        """A connection was taken from the pool, after a wait."""

    def given_back(self) -> None:
        """A connection came back."""


class Connections(Protocol):
    """What a session needs of the pool; see `Database`."""

    observer: Observer | None

    def take(self, deadline: float) -> ServiceConnection:
        """Return a live connection.  Raises DatabaseError."""

    def give_back(self, connection: ServiceConnection) -> None:
        """Return a connection that `take` gave."""

    def renew(self) -> None:
        """Have every connection replaced by a new one."""


class Session:
    """One request's use of the database.  Not for use by two threads at once.

    Its deadline runs while it waits for the database, and stands still while the caller sends a body,
    or a verifier elsewhere is asked.

    `foreseen`, if set, returns for a manager's id the query that will be asked next; whoever can guess the
    manager passes it on as *ahead*.  The rows that come of it wait for exactly that query to be asked.
    """

    __slots__ = ("_connection", "_database", "_left", "_waiting", "foreseen")

    def __init__(self, database: Connections, seconds: float) -> None:
        self._database = database
        self._left = seconds
        self._connection: ServiceConnection | None = None
        self._waiting: tuple[Query, list[Row]] | None = None
        self.foreseen: Callable[[str], Query] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def row(self, statement: Statement, parameters: Parameters, ahead: Query | None = None) -> Row | None:
        """Run *statement* and return its first row, or None.  Raises DatabaseError."""
        rows = self.rows(statement, parameters, ahead)
        return rows[0] if rows else None

    def rows(self, statement: Statement, parameters: Parameters, ahead: Query | None = None) -> list[Row]:
        """Run *statement* and return all its rows.  Raises DatabaseError.

        *ahead*, which is to write nothing, goes with it; if it fails, it was not asked.
        """
        waiting, self._waiting = self._waiting, None
        if waiting is not None and waiting[0] == (statement, parameters):
            return waiting[1]
        deadline = time.monotonic() + self._left
        try:
            for attempt in itertools.count(1):
                try:
                    return self._run(statement, parameters, ahead, deadline)
                except DatabaseError as ex:
                    if not retries.may_run_again(ex, writes=statement.writes, attempts=attempt):
                        raise
            raise AssertionError("unreachable")
        finally:
            self._left = deadline - time.monotonic()

    def close(self) -> None:
        """Give the connection back; the session may be used again and then takes another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._database.give_back(connection)

    def _run(
        self, statement: Statement, parameters: Parameters, ahead: Query | None, deadline: float
    ) -> list[Row]:
        if self._connection is not None and statement.writes and self._connection.is_stale():
            # It died since the last statement.  A read would find out and run again; a write may not.
            self._connection.close()
            self.close()
        if self._connection is None:
            self._connection = self._database.take(deadline)
        observer = self._database.observer
        started = time.perf_counter() if observer else 0.0
        try:
            if ahead is None:
                rows = self._connection.run(statement, parameters, deadline)
            else:
                rows, others = self._connection.run_ahead(statement, parameters, ahead, deadline)
                self._waiting = None if others is None else (ahead, others)
        except DatabaseError as ex:
            if retries.remedy(ex) is retries.Remedy.ELSEWHERE:
                self._database.renew()
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
