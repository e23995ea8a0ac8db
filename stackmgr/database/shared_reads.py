"""Reads of several requests in one round trip, over one connection."""

import logging
import time
from itertools import islice
from typing import Protocol

from stackmgr.database import retries
from stackmgr.database.connection import DatabaseConnection, Execution, Row
from stackmgr.errors import DatabaseError
from stackmgr.scheduler import Signal, end_turn, has_scheduler

_MAX_REQUESTS = 4
# Of a statement.  Such a page has up to 170 kB, as sql/stack_list.sql omits long names, and a single stack up
# to 265 kB: a batch has at most 1.1 MB, which takes the server 3 ms.
_MAX_ROWS = 32

# The share of its leader's seconds for a batch: by then the server has ended a statement that is too slow.
_BATCH_SHARE = 0.7

_log = logging.getLogger("stackmgr")


class Connections(Protocol):
    """What acquires and releases connections: see `Database`."""

    def acquire(self, deadline: float) -> DatabaseConnection:
        """Return a live connection.  Raises DatabaseError."""

    def release(self, connection: DatabaseConnection) -> None:
        """Release a connection that `acquire` returned."""


class _Request:
    """The reads of one request; `rows` are those of each, or None until all have succeeded."""

    __slots__ = ("has_ended", "reads", "rows")

    def __init__(self, reads: list[Execution]) -> None:
        self.reads = reads
        self.rows: list[list[Row]] | None = None
        self.has_ended = Signal()


class SharedReads:
    """Runs the reads of requests that start in the same turn of the scheduler as one batch.

    Sent apart, each would wake a server process and this one.  The first request of a batch leads it: it lets
    the turn end, acquires the connection, and sends what has joined until then.  The invariants:

    - The reads find a few rows of bounded size by an index, and may run twice.  Nothing else is in a batch.
    - A batch is complete before it is sent: no request waits for one that was under way before it.
    - Only the leader uses the connection, from `acquire` to `release`.  What it passes on are rows.
    - Each request gets the rows of its own reads, or None if one of them or of those before fails, or the
      leader in any way.  Then its reads are a batch of their own: it has its own outcome and lost only time.
    - The leader ends a batch after a share of its time.  The others wait as long as it does.
    - Requests of other threads than the scheduler's have batches of their own.
    """

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._open: list[_Request] | None = None  # the batch that requests may join

    def run(self, reads: list[Execution], deadline: float, *, max_rows: int) -> list[list[Row]] | None:
        """Return the rows of each read, or None where each must be run alone.

        No read returns more than *max_rows*.  Raises DatabaseError if no connection can be acquired.
        """
        request = _Request(reads)
        is_shared = max_rows <= _MAX_ROWS and has_scheduler()
        if is_shared and (batch := self._open) is not None:
            self._join(batch, request, deadline)
        else:
            batch = [request]
            if is_shared:
                self._open = batch
                end_turn()
            self._lead(batch, deadline)
        if request.rows is None and len(batch) > 1:
            self._lead([request], deadline)
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
            if connection is None or (
                len(batch) == 1 and retries.retry_action(ex) is retries.RetryAction.CLOSE
            ):
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
        reads = [read for request in batch for read in request.reads]
        if len(batch) > 1:
            deadline -= (1 - _BATCH_SHARE) * (deadline - time.monotonic())
        rows = connection.run_together(reads, deadline)
        for request in batch:
            request.rows = list(islice(rows, len(request.reads)))
        next(rows, None)  # raises the error of the commit, if there is one
