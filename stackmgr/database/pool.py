"""The way to PostgreSQL: a pool for each process, and no SQL of its own."""

import contextlib
import logging
import os
import time

from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout

from stackmgr.database import retries
from stackmgr.database.connection import DatabaseConnection
from stackmgr.database.conninfo import completed_conninfo
from stackmgr.database.session import Observer, Session
from stackmgr.errors import DatabaseError
from stackmgr.slots import give_up

DEADLINE = 5.0

# How much of its deadline a session waits for a connection.
_CHECKOUT = 0.4

# After a failed attempt to connect, the pool tries again when it is next asked, and not later and later.
_RECONNECT_TIMEOUT = 0.0
POLL_INTERVAL = 0.2

# A server that takes no writes from anybody is not to be worn out by new connections.
MIN_DRAIN_INTERVAL = 0.25

# For so many seconds a connection is kept at hand between requests, and the last to come back is the first to
# go: its server process is still warm.  Then the pool, which gives out the coldest, has a look at its age.
HOT_SECONDS = 1.0

_LOG_AGAIN_AFTER = 10.0


class RateLimitFilter(logging.Filter):
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


_log_filter = RateLimitFilter()


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
        self._drained_at = 0.0
        self._hot: list[DatabaseConnection] = []
        self._pool = ConnectionPool(
            completed_conninfo(url, role, deadline),
            connection_class=DatabaseConnection,
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
        logging.getLogger("psycopg.pool").addFilter(_log_filter)
        self._pool.open()

    def close(self) -> None:
        """Close every connection."""
        self._return_hot()
        self._pool.close()

    def session(self) -> Session:
        """Return a new session; it costs nothing until its first statement."""
        return Session(self, self._deadline)

    def acquire(self, deadline: float) -> DatabaseConnection:
        """Return a live connection, in exchange for any that died while idle in the pool."""
        if self._pid != os.getpid():
            raise AssertionError("the pool belongs to another process: open it after the fork")
        started = time.monotonic()
        patience = min(deadline, started + _CHECKOUT * self._deadline)
        while (connection := self._connection_until(patience)).is_stale():
            connection.close()
            self._pool.putconn(connection)
        if self.observer is not None:
            self.observer.acquired(time.monotonic() - started)
        return connection

    def _connection_until(self, patience: float) -> DatabaseConnection:
        while True:
            left = patience - time.monotonic()
            if self._hot and left > 0:
                with contextlib.suppress(IndexError):
                    return self._hot.pop()
            give_up()
            try:
                connection = self._pool.getconn(min(POLL_INTERVAL, left))
            except PoolTimeout as ex:
                if left <= POLL_INTERVAL:
                    raise DatabaseError(retries.NO_CONNECTION, None) from ex
            except PoolClosed as ex:
                raise DatabaseError(retries.NO_CONNECTION, None) from ex
            else:
                connection.acquired_at = time.monotonic()
                return connection

    def drain(self) -> None:
        """Have every connection replaced by a new one, at once or when it is given back."""
        now = time.monotonic()
        if now - self._drained_at > MIN_DRAIN_INTERVAL:
            self._drained_at = now
            self._pool.drain()
            self._return_hot()

    def release(self, connection: DatabaseConnection) -> None:
        """Return a connection that `acquire` gave."""
        if self.observer is not None:
            self.observer.released()
        if connection.closed or time.monotonic() - connection.acquired_at > HOT_SECONDS:
            self._pool.putconn(connection)
        else:
            self._hot.append(connection)

    def _return_hot(self) -> None:
        with contextlib.suppress(IndexError):
            while True:
                self._pool.putconn(self._hot.pop())
