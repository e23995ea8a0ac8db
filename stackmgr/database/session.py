"""A session: one request's use of the database, within one deadline.

Every operation is one statement in autocommit: it is atomic by itself, leaves no transaction open, and costs
one round trip.  A look-up, as of a key, shares one with those of other requests, or with the request's own
statement.  For any other statement the session acquires a connection and keeps it to the end of the request.
"""

import itertools
import time
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple, Protocol, Self, TypeVar

from stackmgr.database import retries
from stackmgr.database.connection import DatabaseConnection, Execution, Parameters, Row, execution
from stackmgr.database.retries import RetryAction
from stackmgr.database.shared_reads import Connections, SharedReads
from stackmgr.database.statements import Statement
from stackmgr.errors import DatabaseError, ServiceError
from stackmgr.settings import Settings

# Seconds that one session may wait for the database, unless it is given another number.
SESSION_SECONDS = float(Settings.database_timeout)

_MAX_HINTS = 10_000


_Result = TypeVar("_Result")


class Caller(NamedTuple):
    """As whom a request is verified: parameters of its planned statement.

    `key_digest` is in hints only, of a key whose verification is a look-up and nothing else.
    """

    manager_id: str
    identity_id: str
    key_id: str | None
    key_digest: bytes | None = None


class Planned(NamedTuple):
    """The statement of a request, which returns at most `max_rows`.  The session adds those of the caller."""

    statement: Statement
    parameters: dict[str, Any]
    max_rows: int = 1


class PrefetchHints:
    """The caller last seen for a key or an identity.  Used only to choose what to send ahead."""

    def __init__(self) -> None:
        self._callers: dict[Hashable, Caller] = {}

    def get(self, known: Hashable) -> Caller | None:
        """Return the caller, if *known* has been seen."""
        return self._callers.get(known)

    def remember(self, known: Hashable, caller: Caller) -> None:
        """Send ahead for *caller* the next time."""
        if self._callers.get(known) == caller:
            return
        if len(self._callers) >= _MAX_HINTS:
            self._callers.clear()
        self._callers[known] = caller

    def forget(self, known: Hashable) -> None:
        """Send nothing ahead the next time: the traffic of a rejected key must not depend on its past."""
        self._callers.pop(known, None)


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

    **Prefetch.**  A request could send its statement as soon as it is routed, but for the manager, whom only
    the verification of the key names.  The middleware sets `plan`, which returns that statement.  The one
    that looks the manager up, by the key or by the identity that a remote verifier has named, is run with a
    *hint*: if `hints` has a caller for it, the planned statement for that caller travels with the look-up, in
    one round trip.  `planned_rows` returns its rows if the look-up has named the same manager.  If the key is
    rejected or the hint is wrong, they are discarded, and the statement runs as if none had been sent ahead.

    A write is sent ahead only by the digest of a key: it verifies the key itself, as of its own snapshot, and
    writes nothing for one that is not valid, or not the caller's, any more.
    """

    __slots__ = ("_connection", "_connections", "_prefetched", "_seconds_left", "hints", "plan")

    def __init__(self, connections: ConnectionSource, seconds: float) -> None:
        self._connections = connections
        self._seconds_left = seconds
        self._connection: DatabaseConnection | None = None
        self._prefetched: list[Row] | DatabaseError | None = None
        self.hints = connections.hints
        self.plan: Callable[[], Planned] | Planned | ServiceError | None = None

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

        *hint* is what *statement* looks a manager up by: what is planned is sent ahead for the caller that
        `hints` has for it.
        """
        self._prefetched = None
        statement = self._connections.variants.get(statement.name, statement)
        deadline = time.monotonic() + self._seconds_left
        try:
            if hint is not None and self._connection is None:
                rows = self._look_up(execution(statement, parameters), hint, deadline)
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

    def planned(self) -> Planned:
        """Return what is planned.  Raises the error of the plan, each time."""
        if callable(self.plan):
            try:
                self.plan = self.plan()
            except ServiceError as ex:
                self.plan = ex.with_traceback(None)
        if isinstance(self.plan, ServiceError):
            raise self.plan
        if self.plan is None:
            raise AssertionError("nothing is planned")
        return self.plan

    def planned_rows(self, caller: Caller, instead: Statement | None = None) -> list[Row]:
        """Return the rows of the planned statement for *caller*, sent ahead or not.  Raises DatabaseError.

        With *instead*, run that statement with the parameters of the planned one.
        """
        statement, parameters, _ = self.planned()
        prefetched, self._prefetched = self._prefetched, None
        is_hint_right = parameters.get("manager_id") == caller.manager_id
        if isinstance(prefetched, DatabaseError):
            if is_hint_right:
                raise prefetched
        elif prefetched is not None and (prefetched if statement.writes else is_hint_right):
            return prefetched
        parameters.update(caller._asdict())
        return self.rows(instead or statement, parameters)

    def close(self) -> None:
        """Release the connection.  A closed session may be used again and acquires another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._connections.release(connection)

    def _look_up(self, look_up: Execution, hint: Hashable, deadline: float) -> list[Row] | None:
        """Run a look-up with what is planned, if *hint* allows, and the look-ups of other requests."""
        together, planned, max_rows = [look_up], self._planned_for(self.hints.get(hint)), 1
        if planned is not None:
            together.append(execution(planned.statement, planned.parameters))
            if planned.statement.writes:
                return self._look_up_and_write(together, deadline)
            max_rows = planned.max_rows
        found = self._connections.shared_reads.run(together, deadline, max_rows=max_rows)
        if found is None:
            return None
        self._prefetched = found[1] if len(found) > 1 else None
        return found[0]

    def _planned_for(self, caller: Caller | None) -> Planned | None:
        """Return what is planned, with the parameters of *caller*, if it may be sent ahead."""
        if caller is None or self.plan is None:
            return None
        try:
            planned = self.planned()
        except ServiceError:  # a rejected key comes first
            return None
        if not planned.statement.writes:
            planned.parameters["manager_id"] = caller.manager_id
        elif caller.key_digest is None or planned.statement.name in self._connections.variants:
            return None
        else:
            planned.parameters.update(caller._asdict())
        return planned

    def _look_up_and_write(self, together: list[Execution], deadline: float) -> list[Row] | None:
        """Return the rows of the look-up, or None if it must run alone: then nothing has been written.

        Raises DatabaseError if the write may have taken place.  Its other errors wait for `planned_rows`.
        """
        found: list[list[Row]] = []
        try:
            self._use(lambda connection: found.extend(connection.run_together(together, deadline)), deadline)
        except DatabaseError as ex:
            if retries.retry_action(ex) in (RetryAction.RETRY_IF_READ, RetryAction.CLOSE):
                ex.may_have_written = True
                raise
            if found and not retries.should_retry(ex, writes=True, attempts=1):
                self._prefetched = ex.with_traceback(None)
        else:
            self._prefetched = found[1]
        return found[0] if found else None

    def _run(self, statement: Statement, parameters: Parameters, deadline: float) -> list[Row]:
        if self._connection is not None and statement.writes and self._connection.is_stale():
            # It died since the last statement.  A read would fail and run again; a write may not run again.
            self.close()
        return self._use(lambda connection: connection.run(statement, parameters, deadline), deadline)

    def _use(self, call: Callable[[DatabaseConnection], _Result], deadline: float) -> _Result:
        if self._connection is None:
            self._connection = self._connections.acquire(deadline)
        try:
            return call(self._connection)
        except DatabaseError as ex:
            if retries.retry_action(ex) is RetryAction.RECONNECT_ALL:
                self._connections.drain()
            if self._connection.closed:
                self.close()
            raise
