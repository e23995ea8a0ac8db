"""The invariants of the scheduler and of round trips, as their docstrings state them."""

from math import inf
from typing import Any

from stackmgr import scheduler
from stackmgr.database import round_trips
from stackmgr.database.connection import DatabaseConnection, Execution, Row
from stackmgr.database.retries import LOCK_NOT_AVAILABLE
from stackmgr.database.round_trips import _ALONE_SECONDS, MAX_REQUESTS, MAX_ROWS, RoundTrips, _Batch, _Lane
from stackmgr.errors import DatabaseError
from stackmgr.reasons import ReasonSlug
from stackmgr.scheduler import Scheduler
from tests.simulation.world import Thread, Violation, World, asker

_SHARE = 0.4  # of a session's time, for a wait in line
_SLACK = 0.001  # seconds


class Schedule:
    """Watches one Scheduler and the thread that runs it."""

    def __init__(self, world: World, scheduler: Scheduler, thread: Thread) -> None:
        self.world, self.scheduler, self.thread = world, scheduler, thread
        self._waits, self._stalled, self._stalled_before = 0, 0.0, 0.0
        world.invariants_at_rest.append(self.check_at_rest)

    def check_at_rest(self) -> None:
        """Check what holds while the thread waits for events."""
        if self.thread.paused is not self.thread.only_waits_in:
            return  # a request blocks it for a moment
        scheduler = self.scheduler
        if scheduler.until_idle or scheduler._ready:
            raise Violation("what can run runs", "greenlets that are ready wait")
        first = min(scheduler._deadlines.values(), default=inf)
        if self._waits != self.thread.waits:  # the seconds of this wait were chosen after the last look
            self._waits, self._stalled_before = self.thread.waits, self._stalled
        self._stalled = self.world.stalled
        late = self.world.now - first - _SLACK
        if late > self._stalled - self._stalled_before:
            raise Violation("every wait ends at its deadline", f"{late:.3f} s ago")
        if scheduler._next_deadline() > first:
            raise Violation("every wait ends at its deadline", "the thread waits beyond the first deadline")
        for descriptor, (greenlet, _) in scheduler._waiters.items():
            if greenlet not in scheduler._deadlines:
                raise Violation("a greenlet waits for one thing at a time", f"descriptor {descriptor}")

    def check_at_end(self) -> None:
        if self.scheduler._deadlines or self.scheduler._waiters:
            raise Violation("every wait has an end", f"{len(self.scheduler._deadlines)} greenlets wait")


class WatchedTrips(RoundTrips):
    """Checks each batch when it is sent, and when it has ended."""

    def __init__(self, connections: Any, size: int, world: World) -> None:
        super().__init__(connections, size)
        self.world, self._size = world, size
        self._writing = 0  # connections
        self._askers: dict[int, object] = {}  # by the id of a statement to be executed
        self._sending: list[tuple[object, float] | None] = []
        # By manager: in which span its writes run alone, as a batch has waited for its lock in vain.
        self._spans: dict[bytes | None, tuple[float, float]] = {}
        self._alone_in: dict[int, tuple[object, float]] = {}  # by the id of a statement: manager and span
        world.invariants_at_rest.append(self.check_at_rest)

    def run(self, execution: Execution, deadline: float, *, may_share: bool) -> list[Row]:
        if may_share and int(execution.value("row_limit") or 1) > MAX_ROWS:
            self.world.fail("a batch is bounded", "it may have a large page")
        self._askers[id(execution)] = asker()
        try:
            return super().run(execution, deadline, may_share=may_share)
        finally:
            del self._askers[id(execution)]

    def _note_wait(self, execution: Execution, error: DatabaseError) -> None:
        super()._note_wait(execution, error)
        manager_id, now = execution.value("manager_id"), self.world.now
        if error.sqlstate == LOCK_NOT_AVAILABLE and scheduler.has_scheduler():
            began, ends = self._spans.get(manager_id, (now, inf))
            self._spans[manager_id] = began if now < ends else now, now + _ALONE_SECONDS - _SLACK

    def _span(self, execution: Execution) -> tuple[object, float] | None:
        """Return in which span a write is to run alone, or None."""
        manager_id = execution.value("manager_id") if execution.statement.writes else None
        began, ends = self._spans.get(manager_id, (0.0, 0.0))
        return (manager_id, began) if self.world.now < ends and scheduler.has_scheduler() else None

    def _run_alone(self, lane: _Lane, execution: Execution, deadline: float) -> list[Row]:
        if span := self._span(execution):
            self._alone_in[id(execution)] = span
        try:
            return super()._run_alone(lane, execution, deadline)
        finally:
            self._alone_in.pop(id(execution), None)

    def _share(self, lane: _Lane, execution: Execution, deadline: float) -> list[Row] | None:
        is_alone = self._span(execution) is not None
        try:
            rows = super()._share(lane, execution, deadline)
        except DatabaseError as ex:
            if ex.reason == ReasonSlug.DEADLINE:  # of a request whose batch goes on without it
                self.world.touched[asker()].append(f"{ex.statement} alone")
            raise
        if is_alone and rows is not None:
            self.world.fail("after a wait for a lock, a manager's writes run alone", "one shares a batch")
        return rows

    def _send(self, batch: _Batch, connection: DatabaseConnection, deadline: float) -> None:
        sent, world = list(batch.requests), self.world
        writes = sent[0].execution.statement.writes
        if batch in (self._reads._open, self._writes._open):
            world.fail("a batch is complete before it is sent", "requests may still join")
        size = sum(request.execution.parameter_bytes for request in sent)
        if len(sent) > MAX_REQUESTS or (len(sent) > 1 and size > round_trips._MAX_PARAMETER_BYTES):
            world.fail("a batch is bounded", f"{len(sent)} requests, {size} bytes")
        if any(request.execution.statement.writes != writes for request in sent):
            world.fail("reads and writes have batches of their own", repr(sent))
        if len(sent) > 1 and not scheduler.has_scheduler():
            world.fail("other threads share nothing", repr(sent))
        span = self._alone_in.get(id(sent[0].execution))
        if span is not None and span in self._sending:
            world.fail("after a wait for a lock, a manager's writes run alone", "two are under way")
        self._sending.append(span)
        world.note("batch", len(sent))
        self._writing += writes and scheduler.has_scheduler()
        if self._writing > max(1, self._size - 1):
            world.fail("writes leave a connection to reads", f"{self._writing} of {self._size}")
        try:
            super()._send(batch, connection, deadline)
        finally:
            self._sending.remove(span)
            self._writing -= writes and scheduler.has_scheduler()
            if batch.requests != sent:
                world.fail("a batch is complete before it is sent", "a request has joined since")
            for request in sent if len(sent) > 1 else ():
                if request.rows is None and not batch.is_rolled_back:  # the exchange has its fault
                    name = request.execution.statement.name
                    world.touched[self._askers.get(id(request.execution))].append(f"{name} alone")

    def _send_together(self, batch: _Batch, connection: DatabaseConnection, deadline: float) -> None:
        world, started, stalled = self.world, self.world.now, self.world.stalled
        super()._send_together(batch, connection, deadline)
        requests, seconds = batch.requests, max(0.0, deadline - started)
        if requests[0].execution.statement.writes or all(each.rows is not None for each in requests):
            return
        took = world.now - started - (world.stalled - stalled)
        is_late = batch.reason == ReasonSlug.DEADLINE and not batch.is_rolled_back
        if took > 0.8 * seconds + _SLACK or (is_late and world.now < started + 0.5 * seconds):
            world.fail("reads of a slow batch have time to run alone", f"{took:.3f} s of {seconds:.3f} s")

    def _lead(self, lanes: list[_Lane], batch: _Batch, deadline: float) -> None:
        world, started = self.world, self.world.now
        try:
            super()._lead(lanes, batch, deadline)
        except DatabaseError as ex:
            waited = world.now - started
            owed = min(deadline - started, _SHARE * world.plan["deadline"]) - _SLACK
            if ex.reason == ReasonSlug.NO_CONNECTION and waited < owed:
                world.fail("a request waits in line for its time", f"{waited:.3f} s of {owed:.3f} s")
            raise
        finally:
            is_open = any(lane._open is batch for lane in lanes)
            if is_open or not all(each.has_ended._is_set for each in batch.requests[1:]):
                self.world.fail("a batch ends with its leader", repr(batch))

    def check_at_rest(self) -> None:
        for lane in (self._reads, self._writes):
            if lane._line and not lane.under_way:
                raise Violation("a batch leaves when none is under way", f"{len(lane._line)} wait")
            if len(lane.under_way) > lane._limit:
                raise Violation("a lane counts its round trips", f"{len(lane.under_way)}")

    def check_at_end(self) -> None:
        lanes = [self._reads, self._writes, *(lane for _, lane in self._alone.values())]
        if any(lane._line or lane.under_way or lane._open for lane in lanes):
            raise Violation("a lane counts its round trips", "one is not empty at the end")
