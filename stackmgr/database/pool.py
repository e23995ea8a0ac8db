"""The connections of one process to PostgreSQL: psycopg's pool, whose waiters block no thread."""

import logging
import os
import time
from collections.abc import Callable

from psycopg_pool import ConnectionPool
from psycopg_pool.pool import WaitingClient

from stackmgr.database import conninfo, statements
from stackmgr.database.connection import DatabaseConnection
from stackmgr.database.round_trips import RoundTrips
from stackmgr.database.session import SESSION_SECONDS, Session
from stackmgr.errors import DatabaseError
from stackmgr.monitoring.logs import RateLimitFilter
from stackmgr.reasons import ReasonSlug
from stackmgr.scheduler import Signal
from stackmgr.settings import Settings

# The share of a session's seconds that it may wait for a connection.
_ACQUIRE_SHARE = 0.4

# After a failed attempt to connect, the pool gives up at once, and tries again for waiting requests
# at an interval.  Its own pauses between attempts would grow.
_RECONNECT_TIMEOUT = 0.0
RECONNECT_INTERVAL = 0.2  # seconds

# Above the minimum, psycopg closes an idle connection at each interval: others may have none.
MAX_IDLE_SECONDS = 5.0
# A session identifies its role by number, and its server by address: both may have been made anew.
_MAX_LIFETIME_SECONDS = 600.0

# A server that is read-only for every session must not be flooded with new connections.
MIN_DRAIN_INTERVAL = 0.25  # seconds

logging.getLogger("psycopg.pool").addFilter(RateLimitFilter())


class _Waiter(WaitingClient[DatabaseConnection]):
    """A waiter in the pool's queue.  It may leave the queue only while it holds the pool's lock."""

    __slots__ = ("woken",)

    def __init__(self) -> None:
        super().__init__()
        self.woken = Signal()

    def set(self, conn: DatabaseConnection) -> bool:
        self.conn = conn
        self.woken.set()
        return True

    def fail(self, error: Exception) -> bool:
        """End the wait of the request: the pool is closed."""
        self.woken.set()
        return True


class Pool(ConnectionPool[DatabaseConnection]):
    """psycopg's pool for greenlets.

    `putconn` serves the queue of waiting requests; the pool's own threads connect.  The invariants:

    - Each connection is in one place: a session, on its way to a request that left the queue, or
      here.
    - A returned connection goes to the first in the queue.  None waits while one is idle here.
    - The connection returned last is acquired first: its server process is still warm.
    - Whoever stops waiting leaves the queue: a connection passed to it would be lost.
    """

    observe_wait: Callable[[float], object] = float  # ignores the seconds of a wait: see `Database.on_wait`

    def acquire(self, give_up_at: float) -> DatabaseConnection:
        """Return a live connection; replace those that died while idle.  Raises DatabaseError."""
        is_first_in_line = False
        while True:
            connection = self._next(give_up_at, is_first_in_line=is_first_in_line)
            is_stale = True
            try:
                is_stale = connection.is_stale()
            finally:
                if is_stale:
                    connection.close()
                    self.putconn(connection)
            if not is_stale:
                return connection
            is_first_in_line = True

    def _next(self, give_up_at: float, *, is_first_in_line: bool) -> DatabaseConnection:
        started = time.monotonic()
        if self._closed or started >= give_up_at:
            raise DatabaseError(ReasonSlug.NO_CONNECTION)
        with self._lock:
            if self._pool:
                connection: DatabaseConnection = self._pool.pop()
                self._nconns_min = min(self._nconns_min, len(self._pool))
                connection._pool = self  # noqa: SLF001 - `putconn` rejects any other
                return connection
            self._maybe_grow_pool()
            waiter = _Waiter()
            if is_first_in_line:
                self._waiting.appendleft(waiter)
            else:
                self._waiting.append(waiter)
        try:
            waiter.woken.wait(give_up_at - started)
        except BaseException:
            if passed := self._leave(waiter):
                self.putconn(passed)
            raise
        finally:
            self.observe_wait(time.monotonic() - started)
        if passed := self._leave(waiter):
            return passed
        raise DatabaseError(ReasonSlug.NO_CONNECTION)

    def _leave(self, waiter: _Waiter) -> DatabaseConnection | None:
        """Return the connection that was passed to *waiter*, or remove it from the queue."""
        with self._lock:
            if waiter.conn is not None:
                waiter.conn._pool = self  # noqa: SLF001 - see `_next`
            elif waiter in self._waiting:
                self._waiting.remove(waiter)
            return waiter.conn

    def reconnect_failed(self) -> None:
        """Connect again soon, if requests wait; psycopg's pool would at the next request."""
        self._sched.enter(RECONNECT_INTERVAL, self._connect_for_line)

    def _connect_for_line(self) -> None:
        with self._lock:
            if self._waiting:
                self._maybe_grow_pool()


class Database:
    """The pool of one process.  Opened after the fork: processes must not share a connection.

    Every connection assumes *role*; *deadline* is how many seconds a session may wait for the
    database in total.  *variant* names a folder of `sql/` whose statements replace others.
    """

    def __init__(
        self,
        url: str,
        *,
        role: str = "stackmgr_app",
        pool_size: int,
        deadline: float = SESSION_SECONDS,
        variant: str = Settings.sql_variant,
    ) -> None:
        self.variants = statements.load_variant(variant)
        self.round_trips = RoundTrips(self, pool_size)
        self.acquire_seconds = _ACQUIRE_SHARE * deadline
        self._deadline = deadline
        self._pid = 0
        self._drained_at = 0.0
        self._pool = Pool(
            conninfo.completed_conninfo(url, role, deadline),
            connection_class=DatabaseConnection,
            configure=conninfo.verify_settings,
            kwargs={"autocommit": True},
            min_size=1,
            max_size=pool_size,
            max_idle=MAX_IDLE_SECONDS,
            max_lifetime=_MAX_LIFETIME_SECONDS,
            reconnect_timeout=_RECONNECT_TIMEOUT,
            open=False,
            name="stackmgr",
        )

    def open(self) -> None:
        """Start connecting, in the background: a database that is down may come up later."""
        self._pid = os.getpid()
        self._pool.open()

    def close(self) -> None:
        self._pool.close()

    def session(self) -> Session:
        """Return a new session; it acquires a connection when it needs one."""
        return Session(self, self._deadline)

    def stats(self) -> dict[str, int]:
        """Return the statistics of psycopg's pool, and how many requests shared round trips."""
        trips = {"round_trips": self.round_trips.sent, "round_trip_requests": self.round_trips.requests}
        return {**self._pool.get_stats(), **trips}

    def on_wait(self, observe: Callable[[float], object]) -> None:
        """Call *observe* with the seconds of each wait for a connection, if none is idle."""
        self._pool.observe_wait = observe

    def acquire(self, deadline: float) -> DatabaseConnection:
        """Return a live connection.  Raises DatabaseError."""
        if self._pid != os.getpid():
            raise AssertionError("the pool belongs to another process: open it after the fork")
        return self._pool.acquire(deadline)

    def release(self, connection: DatabaseConnection) -> None:
        self._pool.putconn(connection)

    def drain(self) -> None:
        """Replace every connection: idle ones at once, the others when they are released."""
        now = time.monotonic()
        if now - self._drained_at > MIN_DRAIN_INTERVAL:
            self._drained_at = now
            self._pool.drain()
