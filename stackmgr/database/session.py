"""A session: one request's use of the database, within one deadline.

Every operation is one statement in autocommit: it is atomic by itself, leaves no transaction open, and costs
one round trip.  A look-up, as of a key, shares one with those of other requests.  For any other statement the
session acquires a connection and keeps it to the end of the request.
"""

import itertools
import time
from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple, Protocol, Self

from stackmgr.database import retries
from stackmgr.database.connection import DatabaseConnection, Parameters, Row, execution
from stackmgr.database.shared_reads import Connections, SharedReads
from stackmgr.database.statements import Statement
from stackmgr.errors import DatabaseError
from stackmgr.settings import Settings

# Seconds that one session may wait for the database, unless it is given another number.
SESSION_SECONDS = float(Settings.database_timeout)

_MAX_HINTS = 10_000


class PlannedRead(NamedTuple):
    """A statement that reads for one manager.  The session adds the parameter `manager_id`."""

    statement: Statement
    parameters: dict[str, Any]
    max_rows: int


class PrefetchHints:
    """The manager last seen for a key or an identity.  Used only to choose what to prefetch."""

    def __init__(self) -> None:
        self._managers: dict[Hashable, str] = {}

    def get(self, known: Hashable) -> str | None:
        """Return the id of the manager, if *known* has been seen."""
        return self._managers.get(known)

    def remember(self, known: Hashable, manager_id: str) -> None:
        """Prefetch for *manager_id* the next time."""
        if self._managers.get(known) == manager_id:
            return
        if len(self._managers) >= _MAX_HINTS:
            self._managers.clear()
        self._managers[known] = manager_id

    def forget(self, known: Hashable) -> None:
        """Prefetch nothing the next time: the traffic of a rejected key must not depend on its past."""
        self._managers.pop(known, None)


class ConnectionSource(Connections, Protocol):
    """What a session needs of the pool; see `Database`."""

    variants: Mapping[str, Statement]
    hints: PrefetchHints
    shared_reads: SharedReads

    def drain(self) -> None:
        """Replace every connection."""


class Session:
    """One request's use of the database.  Not for use by two greenlets or threads at once.

    The deadline counts time spent on the database only, not on a client's body or a remote verifier.

    **Prefetch.**  A GET has its query as soon as it is routed, but for the manager, whom only the
    verification of the key names.  The middleware sets it as `planned_read`.  The statement that looks the
    manager up, by the key or by the identity that a remote verifier has named, is run with a *hint*: if
    `hints` has a manager for it, the planned read for that manager travels with the look-up, in one round
    trip.  `planned_rows` returns those rows if the look-up has named the same manager.  If the key is
    rejected or the hint is wrong, they are discarded, and the read runs as if nothing had been prefetched.
    """

    __slots__ = ("_connection", "_connections", "_prefetched", "_seconds_left", "hints", "planned_read")

    def __init__(self, connections: ConnectionSource, seconds: float) -> None:
        self._connections = connections
        self._seconds_left = seconds
        self._connection: DatabaseConnection | None = None
        self._prefetched: list[Row] | None = None
        self.hints = connections.hints
        self.planned_read: PlannedRead | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def row(self, statement: Statement, parameters: Parameters, *, hint: Hashable = None) -> Row | None:
        """Run *statement* and return its first row, or None.  See `rows`."""
        rows = self.rows(statement, parameters, hint=hint)
        return rows[0] if rows else None

    def rows(self, statement: Statement, parameters: Parameters, *, hint: Hashable = None) -> list[Row]:
        """Run *statement* and return all its rows.  Raises DatabaseError.

        *hint* is what *statement* looks a manager up by: the planned read is prefetched for the manager that
        `hints` has for it.
        """
        self._prefetched = None
        statement = self._connections.variants.get(statement.name, statement)
        deadline = time.monotonic() + self._seconds_left
        try:
            if hint is not None and self._connection is None:
                rows = self._look_up(statement, parameters, hint, deadline)
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

    def planned_rows(self, manager_id: str, instead: Statement | None = None) -> list[Row]:
        """Return the rows of the planned read for a manager, prefetched or not.  Raises DatabaseError.

        With *instead*, run that statement with the parameters of the planned read.
        """
        if self.planned_read is None:
            raise AssertionError("no read is planned")
        statement, parameters, _ = self.planned_read
        prefetched, self._prefetched = self._prefetched, None
        if prefetched is not None and parameters["manager_id"] == manager_id:
            return prefetched
        parameters["manager_id"] = manager_id
        return self.rows(instead or statement, parameters)

    def close(self) -> None:
        """Release the connection.  A closed session may be used again and acquires another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._connections.release(connection)

    def _look_up(
        self, statement: Statement, parameters: Parameters, hint: Hashable, deadline: float
    ) -> list[Row] | None:
        """Run a look-up with the planned read, if *hint* allows, and the reads of other requests."""
        reads, planned, max_rows = [execution(statement, parameters)], self.planned_read, 1
        if planned is not None and (manager_id := self.hints.get(hint)):
            planned.parameters["manager_id"] = manager_id
            reads.append(execution(planned.statement, planned.parameters))
            max_rows = planned.max_rows
        found = self._connections.shared_reads.run(reads, deadline, max_rows=max_rows)
        if found is None:
            return None
        self._prefetched = found[1] if len(found) > 1 else None
        return found[0]

    def _run(self, statement: Statement, parameters: Parameters, deadline: float) -> list[Row]:
        if self._connection is not None and statement.writes and self._connection.is_stale():
            # It died since the last statement.  A read would fail and run again; a write may not run again.
            self._connection.close()
            self.close()
        if self._connection is None:
            self._connection = self._connections.acquire(deadline)
        try:
            return self._connection.run(statement, parameters, deadline)
        except DatabaseError as ex:
            if retries.retry_action(ex) is retries.RetryAction.RECONNECT_ALL:
                self._connections.drain()
            if self._connection.closed:
                self.close()
            raise
