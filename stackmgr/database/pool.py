"""The connections of one process to PostgreSQL: psycopg's pool, and in front of it those in frequent use."""

import logging
import os
import time

from psycopg_pool import ConnectionPool, PoolTimeout

from stackmgr.database import session_settings, statements
from stackmgr.database.connection import DatabaseConnection
from stackmgr.database.conninfo import completed_conninfo
from stackmgr.database.hot_connections import HotConnections
from stackmgr.database.session import SESSION_SECONDS, PrefetchHints, Session
from stackmgr.database.shared_reads import SharedReads
from stackmgr.errors import DatabaseError
from stackmgr.monitoring.logs import RateLimitFilter
from stackmgr.reasons import ReasonSlug
from stackmgr.scheduler import start_thread
from stackmgr.settings import Settings

# The share of a session's seconds that it may wait for a connection.
_ACQUIRE_SHARE = 0.4

# After a failed attempt to connect, the pool retries at the next request, without growing pauses.
_RECONNECT_TIMEOUT = 0.0
POLL_INTERVAL = 0.2  # seconds
_READY_SECONDS = 0.001  # how long a connection may take that is ready in the pool

# A server that is read-only for every session must not be flooded with new connections.
MIN_DRAIN_INTERVAL = 0.25  # seconds

_log_filter = RateLimitFilter()


class Database:
    """The pool of one process.  Opened after the fork: two processes must not share a connection.

    *role* is assumed by every connection; *deadline* is how many seconds a session may wait for the database
    in total.  *variant* names a folder of `sql/` whose statements replace those of the same names.
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
        self.hints = PrefetchHints()
        self.shared_reads = SharedReads(self)
        self._deadline = deadline
        self._pid = 0
        self._drained_at = 0.0
        self._hot = HotConnections(pool_size)
        self._pool = ConnectionPool(
            completed_conninfo(url, role, deadline),
            connection_class=DatabaseConnection,
            configure=session_settings.verify,
            kwargs={"autocommit": True},
            min_size=1,
            max_size=pool_size,
            reconnect_timeout=_RECONNECT_TIMEOUT,
            open=False,
            name="stackmgr",
        )

    def open(self) -> None:
        """Start connecting, in the background: a database that is down at start may come up later."""
        self._pid = os.getpid()
        logging.getLogger("psycopg.pool").addFilter(_log_filter)
        self._pool.open()

    def close(self) -> None:
        """Close every connection."""
        self._return_hot()
        self._pool.close()

    def session(self) -> Session:
        """Return a new session; it acquires a connection when it needs one."""
        return Session(self, self._deadline)

    def pop_stats(self) -> dict[str, int]:
        """Return the statistics of psycopg's pool, with the counters since the last call."""
        return self._pool.pop_stats()

    def acquire(self, deadline: float) -> DatabaseConnection:
        """Return a live connection; replace those that died while idle.  Raises DatabaseError."""
        if self._pid != os.getpid():
            raise AssertionError("the pool belongs to another process: open it after the fork")
        give_up_at = min(deadline, time.monotonic() + _ACQUIRE_SHARE * self._deadline)
        while (connection := self._next_connection(give_up_at)).is_stale():
            connection.close()
            self._return_to_pool(connection)
        return connection

    def _next_connection(self, give_up_at: float) -> DatabaseConnection:
        left = give_up_at - time.monotonic()
        if left <= 0:
            raise DatabaseError(ReasonSlug.NO_CONNECTION)
        found = self._hot.acquire()
        if isinstance(found, DatabaseConnection):
            return found
        try:
            self._serve_line()
            found.woken.wait(left)
        except BaseException:
            connection = self._hot.leave(found)
            if connection is not None:
                self._put_back(connection)
            raise
        connection = self._hot.leave(found)
        if connection is None:
            raise DatabaseError(ReasonSlug.NO_CONNECTION) from found.failure
        return connection

    def _serve_line(self) -> None:
        """Check out connections for those in line, as far as there is room: in a thread if that may block."""
        while self._hot.take_room():
            if self._pool.get_stats()["pool_available"]:
                self._check_out(_READY_SECONDS)
                continue
            try:
                start_thread(self._poll_pool)
            except RuntimeError:  # no more threads
                if not self._check_out(_READY_SECONDS):
                    return  # the next request, or the end of one, tries again

    def _poll_pool(self) -> None:
        """Use room that was taken, and then what room there is, until those in line are served."""
        self._check_out(POLL_INTERVAL)
        while self._hot.take_room():
            self._check_out(POLL_INTERVAL)

    def _check_out(self, seconds: float) -> bool:
        """Use room that was taken; return whether the pool had a live connection within *seconds*."""
        connection = failure = None
        try:
            while (found := self._pool.getconn(seconds)).is_stale():
                found.close()
                self._pool.putconn(found)
            found.acquired_at = time.monotonic()
            connection = found
        except PoolTimeout:
            pass
        except BaseException as ex:
            failure = ex
            raise
        finally:
            self._hot.end_check_out(connection, failure)
        return connection is not None

    def release(self, connection: DatabaseConnection) -> None:
        """Release a connection that `acquire` returned."""
        self._put_back(connection)

    def _put_back(self, connection: DatabaseConnection) -> None:
        if not self._hot.keep(connection):
            self._return_to_pool(connection)

    def _return_to_pool(self, connection: DatabaseConnection) -> None:
        self._pool.putconn(connection)
        self._hot.make_room()
        self._serve_line()

    def drain(self) -> None:
        """Replace every connection: idle ones at once, the others when they are released."""
        now = time.monotonic()
        if now - self._drained_at > MIN_DRAIN_INTERVAL:
            self._drained_at = now
            self._pool.drain()
            self._return_hot()

    def _return_hot(self) -> None:
        for connection in self._hot.take_all():
            self._return_to_pool(connection)
