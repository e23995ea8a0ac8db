"""The way to PostgreSQL: a pool for each process, a session for each request, and no SQL of its own.

Every operation is one statement in autocommit: it is atomic by itself, leaves no transaction open, and
costs one round trip, which a read shares with the verification of its key.  The session takes a connection
when the first statement needs one and keeps it to the end of the request, so that verifying the key and
doing the work share one checkout.
"""

import contextlib
import itertools
import logging
import os
import time
from collections.abc import Callable
from typing import Protocol, Self

from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout

from stackmgr import failures
from stackmgr.connection import Parameters, Query, Row, ServiceConnection
from stackmgr.conninfo import completed_conninfo
from stackmgr.errors import DatabaseError
from stackmgr.seats import give_up
from stackmgr.statements import Statement

DEADLINE = 5.0

# How much of its deadline a session waits for a connection.
_CHECKOUT = 0.4

# After a failed attempt to connect, the pool tries again when it is next asked, and not later and later.
_RECONNECT_TIMEOUT = 0.0
_ASK_EVERY = 0.2

# A server that takes no writes from anybody is not to be worn out by new connections.
_RENEW_AFTER = 0.25

# For so many seconds a connection is kept at hand between requests, and the last to come back is the first to
# go: its server process is still warm.  Then the pool, which gives out the coldest, has a look at its age.
_AT_HAND = 1.0

_LOG_AGAIN_AFTER = 10.0


class _Seldom(logging.Filter):
    """Lets the same message through once in so many seconds: an outage is one event, not a thousand."""

    def __init__(self) -> None:
        super().__init__()
        self._next: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether *record* is to be logged."""
        now = time.monotonic()
        if now < self._next.get(record.msg, 0.0):
            return False
        self._next[record.msg] = now + _LOG_AGAIN_AFTER
        return True


_seldom = _Seldom()


class Observer(Protocol):
    """Told of each use of the database; times are in seconds."""

    def statement(self, name: str, seconds: float) -> None:
        """A statement was run, well or not."""

    def taken(self, seconds: float) -> None:
        """A connection was taken from the pool, after a wait."""

    def given_back(self) -> None:
        """A connection came back."""


class Session:
    """One request's use of the database.  Not for use by two threads at once.

    Its deadline runs while it waits for the database, and stands still while the caller sends a body,
    or a verifier elsewhere is asked.

    `foreseen`, if set, returns for a manager's id the query that will be asked next; whoever can guess the
    manager passes it on as *ahead*.  The rows that come of it wait for exactly that query to be asked.
    """

    __slots__ = ("_connection", "_database", "_left", "_waiting", "foreseen")

    def __init__(self, database: "Database", seconds: float) -> None:
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
                    if not failures.may_run_again(ex, writes=statement.writes, attempts=attempt):
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
            if failures.remedy(ex) is failures.Remedy.ELSEWHERE:
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


class Database:
    """The pool of one process.  Opened after the fork: connections must not be shared by two processes.

    *role* is assumed by every connection; *observer*, if given, is told what happens;
    *deadline* is how many seconds a session may wait for the database, all in all.
    """

    def __init__(
        self,
        url: str,
        *,
        role: str = "stackmgr_app",
        pool_size: int,
        observer: Observer | None = None,
        deadline: float = DEADLINE,
    ) -> None:
        self.observer = observer
        self._deadline = deadline
        self._pid = 0
        self._renewed = 0.0
        self._at_hand: list[ServiceConnection] = []
        self._pool = ConnectionPool(
            completed_conninfo(url, role, deadline),
            connection_class=ServiceConnection,
            kwargs={"autocommit": True},
            min_size=1,
            max_size=pool_size,
            reconnect_timeout=_RECONNECT_TIMEOUT,
            open=False,
            name="stackmgr",
        )

    def open(self) -> None:
        """Begin to connect, in the background: a database that is away at start may come back."""
        self._pid = os.getpid()
        logging.getLogger("psycopg.pool").addFilter(_seldom)
        self._pool.open()

    def close(self) -> None:
        """Close every connection."""
        self._put_away()
        self._pool.close()

    def session(self) -> Session:
        """Return a new session; it costs nothing until its first statement."""
        return Session(self, self._deadline)

    def take(self, deadline: float) -> ServiceConnection:
        """Return a live connection, in exchange for any that died while idle in the pool."""
        if self._pid != os.getpid():
            raise AssertionError("the pool belongs to another process: open it after the fork")
        started = time.monotonic()
        patience = min(deadline, started + _CHECKOUT * self._deadline)
        while (connection := self._connection_until(patience)).is_stale():
            connection.close()
            self._pool.putconn(connection)
        if self.observer is not None:
            self.observer.taken(time.monotonic() - started)
        return connection

    def _connection_until(self, patience: float) -> ServiceConnection:
        while True:
            left = patience - time.monotonic()
            if self._at_hand and left > 0:
                with contextlib.suppress(IndexError):
                    return self._at_hand.pop()
            give_up()
            try:
                connection = self._pool.getconn(min(_ASK_EVERY, left))
            except PoolTimeout as ex:
                if left <= _ASK_EVERY:
                    raise DatabaseError(failures.NO_CONNECTION, None) from ex
            except PoolClosed as ex:
                raise DatabaseError(failures.NO_CONNECTION, None) from ex
            else:
                connection.lent_at = time.monotonic()
                return connection

    def renew(self) -> None:
        """Have every connection replaced by a new one, at once or when it is given back."""
        now = time.monotonic()
        if now - self._renewed > _RENEW_AFTER:
            self._renewed = now
            self._pool.drain()
            self._put_away()

    def give_back(self, connection: ServiceConnection) -> None:
        """Return a connection that `take` gave."""
        if self.observer is not None:
            self.observer.given_back()
        if connection.closed or time.monotonic() - connection.lent_at > _AT_HAND:
            self._pool.putconn(connection)
        else:
            self._at_hand.append(connection)

    def _put_away(self) -> None:
        with contextlib.suppress(IndexError):
            while True:
                self._pool.putconn(self._at_hand.pop())
