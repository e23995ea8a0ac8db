"""Reads of several requests in one round trip, over one connection."""

import logging
import time
from collections.abc import Mapping
from typing import Protocol

from stackmgr.database import retries
from stackmgr.database.connection import DatabaseConnection, Execution, Row
from stackmgr.database.statements import Statement
from stackmgr.errors import DatabaseError
from stackmgr.reasons import ReasonSlug
from stackmgr.scheduler import Signal, end_turn, has_scheduler

_MAX_REQUESTS = 4
# Of a statement.  A page has up to 170 kB, as sql/stack_list.sql omits long names, a stack up to
# 265 kB: a batch has at most 1.1 MB, which takes the server 3 ms.
_MAX_ROWS = 32

# The share of its leader's seconds for a batch: the server has ended a slow statement by then.
_BATCH_SHARE = 0.7

_log = logging.getLogger("stackmgr")


class Connections(Protocol):
    """The part of the pool that a session and shared reads use: see `Database`."""

    variants: Mapping[str, Statement]
    shared_reads: "SharedReads"

    def acquire(self, deadline: float) -> DatabaseConnection:
        """Return a live connection.  Raises DatabaseError."""

    def release(self, connection: DatabaseConnection) -> None:
        """Release a connection that `acquire` returned."""

    def drain(self) -> None:
        """Replace every connection."""


class _Request:
    """The read of one request; `rows` is None until it succeeds, `error` would occur again."""

    __slots__ = ("error", "has_ended", "read", "rows")

    def __init__(self, read: Execution) -> None:
        self.read = read
        self.rows: list[Row] | None = None
        self.error: DatabaseError | None = None
        self.has_ended = Signal()


class SharedReads:
    """Runs the reads of requests that start in the same turn of the scheduler as one batch.

    Sent apart, each would wake a server process and this one.  The first request leads the batch:
    it lets the turn end, acquires the connection, and sends what has joined.  The invariants:

    - The reads find a few rows of bounded size by an index, and may run twice.
    - A batch is complete before it is sent: no request waits for one that was under way before it.
    - Only the leader uses the connection, from `acquire` to `release`.  It passes on rows.
    - Each request gets the rows or the error of its own read, or neither if a read before it or the
      leader fails.  It then gets its own outcome in its own batch and has only lost time.
    - The leader ends a batch after a share of its time.  The others wait as long as it does.
    - Requests of other threads than the scheduler's have batches of their own.
    """

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._open: list[_Request] | None = None  # the batch that requests may join

    def run(self, read: Execution, deadline: float, *, max_rows: int) -> list[Row] | None:
        """Return the rows of *read*, at most *max_rows*, or None where it must be run alone.

        Raises DatabaseError where that would not help, and if no connection can be acquired.
        """
        request = _Request(read)
        is_shared = max_rows <= _MAX_ROWS and has_scheduler()
        if is_shared and (batch := self._open) is not None:
            self._join(batch, request, deadline)
        else:
            batch = [request]
            if is_shared:
                self._open = batch
                end_turn()
            self._lead(batch, deadline)
        if request.rows is None and request.error is None and len(batch) > 1:
            self._lead([request], deadline)
        if request.error is not None:
            raise request.error
        return request.rows

    def _join(self, batch: list[_Request], request: _Request, deadline: float) -> None:
        batch.append(request)
        if len(batch) == _MAX_REQUESTS:
            self._open = None
        request.has_ended.wait(deadline - time.monotonic())

    def _lead(self, batch: list[_Request], deadline: float) -> None:
        connection = None
        try:
            connection = self._connections.acquire(deadline)
            self._close(batch)
            self._run(batch, connection, deadline)
        except DatabaseError as ex:
            if connection is None:
                raise
            _log.debug("a shared round trip of %d requests failed: %s %s", len(batch), ex.reason, ex.sqlstate)
        finally:
            self._close(batch)
            if connection is not None:
                self._connections.release(connection)
            for request in batch[1:]:
                request.has_ended.set()

    def _close(self, batch: list[_Request]) -> None:
        if self._open is batch:
            self._open = None

    def _run(self, batch: list[_Request], connection: DatabaseConnection, deadline: float) -> None:
        if len(batch) > 1:
            deadline -= (1 - _BATCH_SHARE) * (deadline - time.monotonic())
        results = connection.run_together([request.read for request in batch], deadline)
        try:
            for request in batch:
                request.rows = next(results)
            next(results, None)  # raises the error of the commit, if there is one
        except DatabaseError as ex:
            is_own = request.rows is None and ex.statement == request.read.statement.name
            is_final = not retries.should_retry(ex, writes=False, attempts=1)
            if is_own and is_final and (len(batch) == 1 or ex.reason == ReasonSlug.REJECTED):
                request.error = ex.with_traceback(None)
            raise
