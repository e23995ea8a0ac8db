"""Reads of several requests in one round trip, over one connection."""

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

# The shares of its seconds for which a request waits for a batch that another leads, and for one that it
# leads: by then the server has ended a statement that is too slow.
_PATIENCE_SHARE = 0.1
_LEADER_SHARE = 0.7


class Connections(Protocol):
    """What acquires and releases connections: the pool, or an operator's one connection."""

    def acquire(self, deadline: float) -> DatabaseConnection:
        """Return a live connection.  Raises DatabaseError."""

    def release(self, connection: DatabaseConnection) -> None:
        """Release a connection that `acquire` returned."""

    def drain(self) -> None:
        """Replace every connection."""


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
    - Each request gets the rows of its own reads, or None.  All get None if one statement fails, the
      connection is lost, or the leader fails in any way.  Then each runs its reads alone, as if there had
      been no batch: it has its own outcome, and no more than the time until then is lost.
    - A request that has waited for a share of its time leaves, and runs its reads alone.  Only the leader
      closes the connection by that.
    - Requests of other threads than the scheduler's have batches of their own.
    """

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._open: list[_Request] | None = None  # the batch that requests may join

    def run(self, reads: list[Execution], deadline: float, *, max_rows: int) -> list[list[Row]] | None:
        """Return the rows of each read, or None where they must be run alone.

        No read returns more than *max_rows*.  Raises DatabaseError if no connection can be acquired.
        """
        batch = [_Request(reads)]
        if max_rows <= _MAX_ROWS and has_scheduler():
            if self._open is not None:
                return self._join(self._open, batch[0], deadline)
            self._open = batch
            end_turn()
        return self._lead(batch, deadline)

    def _join(self, batch: list[_Request], request: _Request, deadline: float) -> list[list[Row]] | None:
        batch.append(request)
        if len(batch) == _MAX_REQUESTS:
            self._open = None
        request.has_ended.wait(_PATIENCE_SHARE * (deadline - time.monotonic()))
        return request.rows

    def _lead(self, batch: list[_Request], deadline: float) -> list[list[Row]] | None:
        connection = None
        try:
            connection = self._connections.acquire(deadline)
            self._close(batch)
            self._run(batch, connection, deadline)
        except DatabaseError as ex:
            action = retries.retry_action(ex)
            if connection is None or (action is retries.RetryAction.CLOSE and len(batch) == 1):
                raise
            if action is retries.RetryAction.RECONNECT_ALL:
                self._connections.drain()
        finally:
            self._close(batch)
            if connection is not None:
                self._connections.release(connection)
            for request in batch[1:]:
                request.has_ended.set()
        return batch[0].rows

    def _close(self, batch: list[_Request]) -> None:
        if self._open is batch:
            self._open = None

    def _run(self, batch: list[_Request], connection: DatabaseConnection, deadline: float) -> None:
        reads = [read for request in batch for read in request.reads]
        if len(batch) > 1:
            deadline -= (1 - _LEADER_SHARE) * (deadline - time.monotonic())
        rows = iter(connection.run_together(reads, deadline))
        for request in batch:
            request.rows = list(islice(rows, len(request.reads)))
