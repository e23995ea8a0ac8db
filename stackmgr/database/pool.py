"""The way to PostgreSQL: a pool for each process, and no SQL of its own."""

import contextlib
import logging
import os
import time

from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout

from stackmgr.database import retries
from stackmgr.database.connection import ServiceConnection
from stackmgr.database.conninfo import completed_conninfo
from stackmgr.database.session import Observer, Session
from stackmgr.errors import DatabaseError
from stackmgr.slots import give_up

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
                    raise DatabaseError(retries.NO_CONNECTION, None) from ex
            except PoolClosed as ex:
                raise DatabaseError(retries.NO_CONNECTION, None) from ex
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
