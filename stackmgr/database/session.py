"""A session: one request's use of the database, within one deadline.

Every operation is one statement in autocommit: it is atomic by itself, leaves no transaction open, and costs
one round trip.  The session acquires a connection for its first statement and keeps it to the end of the
request, so that verifying the key and doing the work share one checkout.
"""

import itertools
import time
from collections.abc import Callable, Hashable, Mapping
from typing import Protocol, Self

from stackmgr.database import retries
from stackmgr.database.connection import DatabaseConnection, Parameters, Query, Row
from stackmgr.database.statements import Statement
from stackmgr.errors import DatabaseError

# Returns the query that will be run next, given the id of the manager that the key is found to be of.
PrefetchQuery = Callable[[str], Query]


_MAX_GUESSES = 10_000


class Guesses:
    """Which manager a key or an identity was last found to be of: for the prefetch only, never an answer."""

    def __init__(self) -> None:
        self._managers: dict[Hashable, str] = {}

    def get(self, known: Hashable) -> str | None:
        """Return the id of the manager, if *known* has been seen."""
        return self._managers.get(known)

    def remember(self, known: Hashable, manager_id: str) -> None:
        """Guess *manager_id* the next time."""
        if self._managers.get(known) == manager_id:
            return
        if len(self._managers) >= _MAX_GUESSES:
            self._managers.clear()
        self._managers[known] = manager_id

    def forget(self, known: Hashable) -> None:
        """Guess nothing the next time: what a rejected key sends must not depend on its past."""
        self._managers.pop(known, None)


class Observer(Protocol):
    """Receives each use of the database; times are in seconds."""

    def statement(self, name: str, seconds: float) -> None:
        """Record that a statement was run, well or not."""

    def acquired(self, seconds: float) -> None:
        """Record that a connection was acquired after a wait."""

    def released(self) -> None:
        """Record that a connection was released."""


class ConnectionSource(Protocol):
    """What a session needs of the pool; see `Database`."""

    observer: Observer | None
    variants: Mapping[str, Statement]

    def acquire(self, deadline: float) -> DatabaseConnection:
        """Return a live connection.  Raises DatabaseError."""

    def release(self, connection: DatabaseConnection) -> None:
        """Take a connection back."""

    def drain(self) -> None:
        """Replace every connection."""


class Session:
    """One request's use of the database.  Not for use by two greenlets or threads at once.

    The deadline counts time spent on the database only, not on a client's body or a remote verifier.

    **Prefetch.**  A GET knows its query as soon as it is routed, but for the manager, whom only the
    verification of the key names.  So the middleware sets `prefetch_query`, and whoever looks the manager up,
    by the key or by the identity that a remote verifier has named, passes a guess as *prefetch_for*: the
    query then travels with the look-up, in one round trip.  The rows are kept until exactly that query is
    run.  If the key is rejected, the guess is wrong or the query fails, they are discarded, and a query runs
    as if nothing had been prefetched.
    """

    __slots__ = ("_connection", "_connections", "_prefetched", "_seconds_left", "prefetch_query")

    def __init__(self, connections: ConnectionSource, seconds: float) -> None:
        self._connections = connections
        self._seconds_left = seconds
        self._connection: DatabaseConnection | None = None
        self._prefetched: tuple[Query, list[Row]] | None = None
        self.prefetch_query: PrefetchQuery | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def row(
        self, statement: Statement, parameters: Parameters, *, prefetch_for: str | None = None
    ) -> Row | None:
        """Run *statement* and return its first row, or None.  See `rows`."""
        rows = self.rows(statement, parameters, prefetch_for=prefetch_for)
        return rows[0] if rows else None

    def rows(
        self, statement: Statement, parameters: Parameters, *, prefetch_for: str | None = None
    ) -> list[Row]:
        """Run *statement* and return all its rows.  Raises DatabaseError.

        With *prefetch_for*, a manager's id, run `prefetch_query` for that manager too, if one is set.
        """
        prefetch = self.prefetch_query(prefetch_for) if prefetch_for and self.prefetch_query else None
        return self._rows(statement, parameters, prefetch)

    def close(self) -> None:
        """Release the connection.  A closed session may be used again and acquires another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._connections.release(connection)

    def _rows(self, statement: Statement, parameters: Parameters, prefetch: Query | None) -> list[Row]:
        prefetched, self._prefetched = self._prefetched, None
        if prefetched is not None and prefetched[0] == (statement, parameters):
            return prefetched[1]
        statement = self._connections.variants.get(statement.name, statement)
        deadline = time.monotonic() + self._seconds_left
        try:
            for attempt in itertools.count(1):
                try:
                    return self._run(statement, parameters, prefetch, deadline)
                except DatabaseError as ex:
                    if not retries.should_retry(ex, writes=statement.writes, attempts=attempt):
                        raise
            raise AssertionError("unreachable")
        finally:
            self._seconds_left = deadline - time.monotonic()

    def _run(
        self, statement: Statement, parameters: Parameters, prefetch: Query | None, deadline: float
    ) -> list[Row]:
        if self._connection is not None and statement.writes and self._connection.is_stale():
            # It died since the last statement.  A read would fail and run again; a write may not run again.
            self._connection.close()
            self.close()
        if self._connection is None:
            self._connection = self._connections.acquire(deadline)
        observer = self._connections.observer
        started = time.perf_counter() if observer else 0.0
        try:
            if prefetch is None:
                return self._connection.run(statement, parameters, deadline)
            rows, others = self._connection.run_with_prefetch(statement, parameters, prefetch, deadline)
            self._prefetched = None if others is None else (prefetch, others)
        except DatabaseError as ex:
            if retries.retry_action(ex) is retries.RetryAction.RECONNECT_ALL:
                self._connections.drain()
            if self._connection.closed:
                self.close()
            raise
        else:
            return rows
        finally:
            if observer is not None:
                seconds = time.perf_counter() - started
                observer.statement(statement.name, seconds)
                if self._prefetched is not None:
                    observer.statement(self._prefetched[0][0].name, seconds)
