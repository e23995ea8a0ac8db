"""Round trips to PostgreSQL: requests that wait at the same time share one, and its commit.

A statement alone wakes two processes, and a write alone flushes the WAL: half of what a create
costs the server.  PostgreSQL runs all that it receives before a Sync as one transaction: a batch.
"""

import logging
import time
from collections import deque
from collections.abc import Mapping
from typing import Protocol

from stackmgr.database import retries, statements
from stackmgr.database.connection import DatabaseConnection, Execution, RolledBack, Row, execution
from stackmgr.database.retries import RetryAction
from stackmgr.database.statements import Statement
from stackmgr.errors import DatabaseError
from stackmgr.reasons import ReasonSlug
from stackmgr.scheduler import BUSY_SECONDS, Signal, has_scheduler

MAX_REQUESTS = 12
# A page has up to 170 kB, as sql/stack_list.sql omits long names, a stack up to 265 kB: the rows of
# a batch have at most 3.2 MB, which takes the server 9 ms.
MAX_ROWS = 32  # of a statement
_MAX_PARAMETER_BYTES = 65_536  # of a batch; a statement with more is alone in its batch
_FEW = 8  # after so many single requests in a row, one that finds none under way waits for no second

# A batch of reads ends after this share of its leader's time, because they can run again.
_READS_SHARE = 0.7
# A write with less time left than this multiple of the longest wait for a connection runs alone.
_LEAST_SHARE = 1.5
# For which the writes of a manager run alone, after one of them made a batch wait for a lock.
_ALONE_SECONDS = 5.0

_BEGIN = execution(statements.load("batch_begin"), {})
_log = logging.getLogger("stackmgr")


class Connections(Protocol):
    """The part of `Database` that sessions and round trips use; the docstrings are there."""

    variants: Mapping[str, Statement]
    round_trips: "RoundTrips"
    acquire_seconds: float

    def acquire(self, deadline: float) -> DatabaseConnection: ...
    def release(self, connection: DatabaseConnection) -> None: ...
    def drain(self) -> None: ...


class _Request:
    """The statement of one request; `rows` is None until they are committed."""

    def __init__(self, execution: Execution) -> None:
        self.execution = execution
        self.rows: list[Row] | None = None
        self.has_ended: Signal  # of a batch that another leads


class _Batch:
    """Requests that share a round trip.  The first one leads."""

    def __init__(self) -> None:
        self.requests: list[_Request] = []
        self.parameter_bytes = 0
        self.has_idled = False  # the thread has had nothing else to do
        self.is_gathered: Signal  # of one that requests may join
        self.may_leave: Signal  # of one that waits in a line
        self.is_sent = self.is_rolled_back = False
        self.reason = ReasonSlug.DEADLINE  # why the outcome is unknown


class _Lane:
    """The round trips of one kind: at most *limit* are under way, the others wait in a line."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.under_way: list[_Batch] = []
        self._line: deque[_Batch] = deque()
        self._open: _Batch | None = None  # the batch that requests may join

    def join(self, request: _Request) -> _Batch:
        """Return the batch that *request* has joined."""
        size = request.execution.parameter_bytes
        batch = self._open
        if batch is not None and batch.parameter_bytes + size > _MAX_PARAMETER_BYTES:
            self.close(batch)
        if self._open is None:
            self._open = _Batch()
            self._open.is_gathered = Signal()
        batch = self._open
        batch.requests.append(request)
        batch.parameter_bytes += size
        if len(batch.requests) == MAX_REQUESTS:
            self.close(batch)
        self._let_leave()
        return batch

    def gather(self, batch: _Batch) -> None:
        """Wait until *batch* may leave, as the invariants of `RoundTrips` say."""
        leaves_at = time.monotonic() + BUSY_SECONDS
        batch.is_gathered.wait_until_idle()
        batch.has_idled = True
        self._let_leave()
        batch.is_gathered.wait(leaves_at - time.monotonic())

    def _let_leave(self) -> None:
        batch, under_way = self._open, (len(each.requests) for each in self.under_way)
        if batch is not None and batch.has_idled and len(batch.requests) >= sum(under_way):
            batch.is_gathered.set()

    def close(self, batch: _Batch) -> None:
        """Let no more requests join *batch*, which then leaves."""
        if self._open is batch:
            self._open = None
            batch.is_gathered.set()

    def enter(self, batch: _Batch, seconds: float) -> None:
        """Wait for a place among those under way.  Raises DatabaseError after *seconds*."""
        if len(self.under_way) < self._limit:
            self.under_way.append(batch)
            return
        batch.may_leave = Signal()
        self._line.append(batch)
        try:
            if not batch.may_leave.wait(seconds):
                raise DatabaseError(ReasonSlug.NO_CONNECTION)  # noqa: TRY301
        except BaseException:
            self.close(batch)
            if batch in self._line:
                self._line.remove(batch)
            else:
                self.leave(batch)
            raise

    def leave(self, batch: _Batch) -> None:
        """End a round trip, and let the first in the line begin."""
        self.under_way.remove(batch)
        self.close(batch)
        if self._line:
            self.under_way.append(self._line.popleft())
            self.under_way[-1].may_leave.set()
        self._let_leave()


class RoundTrips:
    """The round trips of a pool of *size* connections.

    A batch leaves when it is full, when the thread has nothing else to do and no more requests are
    under way than it has, or after 5 ms; at once while requests come one at a time.  The invariants:

    - Reads and writes have batches of their own.  A batch is complete before it is sent.
    - Only the leader uses the connection, from `acquire` to `release`.
    - Nobody gets rows before the server has committed the batch.
    - If the server reports an error and goes on, the batch has changed nothing: each statement runs
      once more alone, and has its own rows or its own error.
    - Otherwise the outcome is unknown for each write, and none is sent twice.  Reads run alone.
    - Every host sends writes in one order: creates by manager and key, then updates by manager and
      stack.  Each waits for no other lock, so no two batches deadlock.
    - A batch waits for a lock only briefly.  Then the writes of the manager whose statement waited
      run alone for some seconds, one at a time.
    - Writes leave a connection to reads.
    - Requests of other threads than the scheduler's, and writes of a variant, share nothing.
    """

    def __init__(self, connections: Connections, size: int) -> None:
        self._connections = connections
        self._reads, self._writes = _Lane(size), _Lane(max(1, size - 1))
        # By manager: until when its writes run alone, and their lane.
        self._alone: dict[bytes, tuple[float, _Lane]] = {}
        self.sent = self.requests = 0  # round trips, and the requests that they had
        self._singles = 0  # how many of them in a row had one request

    def run(self, execution: Execution, deadline: float, *, may_share: bool) -> list[Row]:
        """Return the rows of *execution*, in a batch if it *may_share* one.  Raises DatabaseError."""
        lane = self._writes if execution.statement.writes else self._reads
        is_quiet = self._singles >= _FEW and not (self._reads.under_way or self._writes.under_way)
        may_share = may_share and not is_quiet and has_scheduler()
        rows = self._share(lane, execution, deadline) if may_share else None
        return self._run_alone(lane, execution, deadline) if rows is None else rows

    def _may_share(self, execution: Execution, deadline: float) -> bool:
        seconds = deadline - time.monotonic()
        if not execution.statement.writes:
            return seconds > 0
        # At the deadline of the leader, the outcome of all would be unknown.
        has_time = seconds > _LEAST_SHARE * self._connections.acquire_seconds
        return has_time and not self._connections.variants and self._own_lane(execution) is None

    def _share(self, lane: _Lane, execution: Execution, deadline: float) -> list[Row] | None:
        """Return the rows, or None where the statement has changed nothing and must run alone."""
        request = _Request(execution)
        while self._may_share(execution, deadline):
            batch = lane.join(request)
            if batch.requests[0] is request:
                lane.gather(batch)
                self._lead([lane], batch, deadline)
            else:
                request.has_ended = Signal()
                if not request.has_ended.wait(deadline - time.monotonic()) and not batch.is_sent:
                    batch.requests.remove(request)
            if request.rows is not None:
                return request.rows
            if batch.is_sent:
                if batch.is_rolled_back or not execution.statement.writes:
                    return None
                raise DatabaseError(batch.reason, statement=execution.statement.name)
        return None

    def _run_alone(self, lane: _Lane, execution: Execution, deadline: float) -> list[Row]:
        batch, lanes = _Batch(), [lane] if has_scheduler() else []
        batch.requests.append(_Request(execution))
        if lanes and execution.statement.writes and (own := self._own_lane(execution)):
            lanes.insert(0, own)
        self._lead(lanes, batch, deadline)
        return batch.requests[0].rows or []

    def _lead(self, lanes: list[_Lane], batch: _Batch, deadline: float) -> None:
        """Send *batch* when it may leave.  Raises DatabaseError if it is not sent, or has one request."""
        give_up_at = min(deadline, time.monotonic() + self._connections.acquire_seconds)
        connection, entered = None, []
        try:
            for lane in lanes:
                lane.enter(batch, give_up_at - time.monotonic())
                entered.append(lane)
            connection = self._connections.acquire(give_up_at)
            for lane in lanes:
                lane.close(batch)
            self._send(batch, connection, deadline)
        finally:
            if connection is not None:
                self._connections.release(connection)
            for lane in entered:
                lane.leave(batch)
            for request in batch.requests[1:]:
                request.has_ended.set()

    def _send(self, batch: _Batch, connection: DatabaseConnection, deadline: float) -> None:
        requests = batch.requests
        self.sent += 1
        self.requests += len(requests)
        self._singles = self._singles + 1 if len(requests) == 1 else 0
        if len(requests) > 1:
            batch.is_sent = True
            self._send_together(batch, connection, deadline)
            return
        try:
            requests[0].rows = connection.run(requests[0].execution, deadline)
        except DatabaseError as ex:
            if retries.retry_action(ex) is RetryAction.RECONNECT_ALL:
                self._connections.drain()
            self._note_wait(requests[0].execution, ex)
            raise

    def _send_together(self, batch: _Batch, connection: DatabaseConnection, deadline: float) -> None:
        requests, writes = batch.requests, batch.requests[0].execution.statement.writes
        if writes:
            requests = sorted(requests, key=_lock_order)
        else:
            deadline -= (1 - _READS_SHARE) * (deadline - time.monotonic())
        executions = [*([_BEGIN] * writes), *(request.execution for request in requests)]
        try:
            found = connection.run_together(executions, deadline)
        except RolledBack as ex:
            batch.is_rolled_back = True
            self._note_wait(ex.failed, ex)
            _log.debug("a round trip of %d requests was rolled back: %s", len(requests), ex.sqlstate)
        except DatabaseError as ex:
            batch.reason = ReasonSlug(ex.reason)
        except BaseException:
            batch.reason = ReasonSlug.CONNECTION_LOST
            raise
        else:
            for request, rows in zip(reversed(requests), reversed(found), strict=False):
                request.rows = rows

    def _own_lane(self, execution: Execution) -> _Lane | None:
        """Return the lane of a manager whose writes run alone, or None."""
        found = self._alone.get(execution.value("manager_id") or b"") if self._alone else None
        return found[1] if found and found[0] > time.monotonic() else None

    def _note_wait(self, execution: Execution, error: DatabaseError) -> None:
        """Let the writes of a manager run alone, if *error* is that one waited for a lock in vain."""
        manager_id = execution.value("manager_id")
        if error.sqlstate != retries.LOCK_NOT_AVAILABLE or manager_id is None or not has_scheduler():
            return
        now = time.monotonic()
        self._alone = {key: each for key, each in self._alone.items() if each[0] > now or each[1].under_way}
        _, lane = self._alone.get(manager_id, (now, _Lane(1)))
        self._alone[manager_id] = now + _ALONE_SECONDS, lane


def _lock_order(request: _Request) -> tuple[bytes, ...]:
    """Return what orders the writes of a batch by the lock for which each may wait."""
    execution = request.execution
    locked = execution.value("idempotency_key") or execution.value("stack_id") or b""
    return execution.statement.name.encode(), execution.value("manager_id") or b"", locked
