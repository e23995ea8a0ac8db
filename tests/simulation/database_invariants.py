"""The invariants of the scheduler, the pool, its line and round trips, as their docstrings state them."""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from math import inf
from typing import Any

from stackmgr import scheduler
from stackmgr.database.connection import DatabaseConnection, Execution, Row
from stackmgr.database.pool import MIN_DRAIN_INTERVAL, Database, Pool, _Waiter
from stackmgr.database.round_trips import MAX_REQUESTS, RoundTrips, _Batch, _Lane
from stackmgr.database.statements import Statement
from stackmgr.errors import DatabaseError
from stackmgr.reasons import ReasonSlug
from stackmgr.scheduler import Scheduler
from tests.simulation.postgres import Server
from tests.simulation.world import Thread, Violation, World, asker

_EXCHANGE_SECONDS = 0.1  # that an exchange takes without a fault, or less
_SHARE = 0.4  # of a session's time, for a wait in line
_SLACK = 0.001  # seconds


class WatchedWaiter(_Waiter):
    """Keeps whose turn it is, and whether it has left."""

    def __init__(self, line: "Line") -> None:
        super().__init__()
        self.line = line
        self.turn = line.turn()
        self.has_left = False

    def set(self, conn: DatabaseConnection) -> bool:
        if self.has_left:
            self.line.world.fail("whoever stops waiting leaves the line", "one is passed a connection")
        self.line.passing += 1
        return super().set(conn)


class Preempted(deque[Any]):
    """The pool's lock: each use may pre-empt the thread."""

    world: World

    def __len__(self) -> int:
        count = super().__len__()
        self.world.preempt()
        return count

    def append(self, item: object) -> None:
        self.world.preempt()
        super().append(item)

    def remove(self, item: object) -> None:
        self.world.preempt()
        super().remove(item)


class WatchedIdle(Preempted):
    line: "Line"

    def pop(self) -> DatabaseConnection:  # type: ignore[override]
        self.line.turn()
        return super().pop()

    def popleft(self) -> DatabaseConnection:
        if self.line.pool.is_shrinking:
            return super().popleft()
        if len(self) > 1:
            self.line.world.fail("the last returned is acquired first", f"of {len(self)} the first is")
        self.line.turn()
        return super().popleft()


class WatchedPool(Pool):
    world: World
    is_shrinking = False
    _count = 0

    @property
    def _nconns(self) -> int:
        count = self._count
        self.world.preempt()
        return count

    @_nconns.setter
    def _nconns(self, count: int) -> None:
        self._count = count

    def _shrink_pool(self) -> None:
        self.is_shrinking = True
        super()._shrink_pool()
        self.is_shrinking = False

    def _leave(self, waiter: _Waiter) -> DatabaseConnection | None:
        connection = super()._leave(waiter)
        assert isinstance(waiter, WatchedWaiter)
        waiter.has_left = True
        waiter.line.passing -= connection is not None
        return connection


class Line:
    def __init__(self, world: World, database: "WatchedDatabase", server: Server, size: int) -> None:
        self.world, self.server = world, server
        self.pool = database._pool
        self.size = size
        self.seen: list[Any] = []
        self.in_use: dict[int, object] = {}  # by id: connections between `acquire` and `release`
        self.passing = 0  # connections on their way to a request that has been in line
        self.full_at = 0.0  # when every connection was last in use
        self.turns: dict[object, int] = {}  # of the requests that acquire a connection
        self._numbers = count()
        self.pool._pool, self.pool._waiting = WatchedIdle(), Preempted()
        self.pool._pool.line = self
        self.pool._pool.world = self.pool._waiting.world = world
        world.invariants.append(self.check)
        world.invariants_at_rest.append(self.check_at_rest)

    def requester(self) -> object:
        """Return the request, or the name of the thread, that acquires a connection now."""
        current = self.world.current
        return asker() or (current.name if current is not None else None)

    def turn(self) -> int:
        """Return the turn of the current request: a request whose connection has died keeps it."""
        return self.turns.setdefault(self.requester(), next(self._numbers))

    def acquired(self, connection: DatabaseConnection) -> None:
        request = self.requester()
        if id(connection) in self.in_use:
            owner = self.in_use[id(connection)]
            self.world.fail("a connection has one owner", f"{request} gets that of {owner}")
        self.in_use[id(connection)] = request

    def rejected(self, started: float, owed: float, stalled: float) -> None:
        """Check that a request has no connection only if it has waited and something hindered it."""
        waited, server = self.world.now - started, self.server
        if not owed - _SLACK <= waited <= max(0.0, owed) + _SLACK + stalled and owed > 0:
            self.world.fail("a request waits in line for its time", f"{waited:.3f} s of {owed:.3f} s")
        is_hindered = stalled or owed < _EXCHANGE_SECONDS or any(each.causes() for each in server.verified)
        is_hindered = (
            is_hindered
            or max(server.hindered_until, server.frozen_until) >= self.world.now - _EXCHANGE_SECONDS
        )
        self._note_use()
        if not is_hindered and self.full_at < self.world.now - _EXCHANGE_SECONDS:
            self.world.fail("a request has a connection unless a fault hinders it", self._state())

    def released(self, connection: DatabaseConnection) -> None:
        self._note_use()
        if self.in_use.pop(id(connection), self) is self:
            self.world.fail("a connection has one owner", "released twice")

    def _note_use(self) -> None:
        if len(self.in_use) + self.passing == self.size:
            self.full_at = self.world.now

    def check(self) -> None:
        pool = self.pool
        self._note_use()
        for connection in pool._pool:
            if id(connection) in self.in_use:
                raise Violation("a connection is in one place", "idle, and in a session")
        is_counted = 0 <= len(pool._pool) + len(self.in_use) <= pool._nconns <= self.size
        if pool._lock.owner is None and not is_counted:
            raise Violation("the pool counts its connections", self._state())
        now: list[Any] = list(pool._waiting)
        if not now and not self.seen:
            return
        if pool._lock.owner is None and pool._pool and now:
            raise Violation("no one waits while a connection is idle", f"{len(now)} wait")
        turns = [waiter.turn for waiter in now]
        if turns != sorted(turns):
            raise Violation("the line is served in order", "a request has joined before others")
        for waiter in self.seen:
            if waiter not in now and waiter.conn is not None and any(turn < waiter.turn for turn in turns):
                raise Violation("the line is served in order", "a later request was served first")
        self.seen = now

    def check_at_rest(self) -> None:
        pool = self.pool
        if pool._pool and pool._waiting:
            raise Violation("no one waits while a connection is idle", f"{len(pool._waiting)} wait")
        if pool._waiting and pool._nconns < self.size and not pool._growing and not self._retries():
            raise Violation("while there is room, the pool connects for the line", self._state())

    def _retries(self) -> bool:
        return any(task.action == self.pool._connect_for_line for task in self.pool._sched._queue)

    def check_at_end(self) -> None:
        pool = self.pool
        if pool._waiting or pool._growing or self.in_use or pool._nconns != len(pool._pool):
            raise Violation("no connection and no room is lost", self._state())

    def _state(self) -> str:
        pool = self.pool
        return (
            f"size {self.size}: the pool counts {pool._nconns}, idle {len(pool._pool)},"
            f" in use {list(self.in_use.values())}, line {len(pool._waiting)}"
        )


class WatchedConnection(DatabaseConnection):
    """Looks whether its end had arrived when a write begins."""

    pgconn: Any

    def run(self, execution: Execution, deadline: float) -> list[Row]:
        self._begin(execution.statement)
        with self._exchange(f"{execution.statement.name} alone", deadline):
            return super().run(execution, deadline)

    def run_together(self, executions: Sequence[Execution], deadline: float) -> list[list[Row]]:
        self._begin(executions[-1].statement)
        with self._exchange(f"{len(executions)} together", deadline):
            return super().run_together(executions, deadline)

    def _begin(self, statement: Statement) -> None:
        file, world = self.pgconn.socket_file, self.pgconn.world
        if statement.writes and file.ended_at < world.now and "stall" not in world.faults:
            world.fail("no write is sent on a dead connection", statement.name)

    @contextmanager
    def _exchange(self, what: str, deadline: float) -> Iterator[None]:
        """Require that a fault has touched the exchange if it fails, and note that it did for the request."""
        world, server = self.pgconn.world, self.pgconn.server_session.server
        has_time = deadline - world.now > _EXCHANGE_SECONDS
        self.pgconn.begin()
        is_new = what.startswith("session_settings")
        if is_new:
            server.verified.add(self.pgconn)
        try:
            yield
        except ValueError:
            raise  # of a parameter
        except Exception as ex:
            causes = self.pgconn.causes()
            if has_time and not causes:
                world.fail("an exchange fails by a fault only", f"{what} of {asker()}: {ex!r}")
            world.touched[asker()] += [what, *causes]
            world.note("failed", what, *causes)
            if is_new:
                server.hinder()
            raise
        finally:
            server.verified.discard(self.pgconn)


class WatchedDatabase(Database):
    line: Line
    _pool: Any

    def acquire(self, deadline: float) -> DatabaseConnection:
        line, started, stalled = self.line, self.line.world.now, self.line.world.stalled
        owed = min(deadline - started, _SHARE * self._deadline)
        try:
            connection = super().acquire(deadline)
        except DatabaseError:
            line.rejected(started, owed, line.world.stalled - stalled)
            raise
        finally:
            self.line.turns.pop(self.line.requester(), None)
        self.line.acquired(connection)
        return connection

    def release(self, connection: DatabaseConnection) -> None:
        self.line.released(connection)
        super().release(connection)

    def drain(self) -> None:
        drained_at, idle = self._drained_at, list(self._pool._pool)
        super().drain()
        if 0 < self._drained_at - drained_at < MIN_DRAIN_INTERVAL:
            self.line.world.fail("drains have an interval", f"{self._drained_at - drained_at:.3f} s")
        if self._drained_at != drained_at and any(connection in idle for connection in self._pool._pool):
            self.line.world.fail("a drain replaces every connection", "one is still idle")


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
        if scheduler._signals:
            raise Violation("a signal resumes what waits for it", f"{len(scheduler._signals)} are set")
        if scheduler.ending_turn or scheduler._ready:
            raise Violation("what can run runs", "greenlets that are ready wait")
        first = min(scheduler._deadlines.values(), default=inf)
        if self._waits != self.thread.waits:  # the seconds of this wait were chosen after the last look
            self._waits, self._stalled_before = self.thread.waits, self._stalled
        self._stalled = self.world.stalled
        late = self.world.now - first - _SLACK
        if late > self._stalled - self._stalled_before:
            raise Violation("every wait ends at its deadline", f"{late:.3f} s ago")
        if scheduler._heap and scheduler._heap[0][0] > first:
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
        world.invariants_at_rest.append(self.check_at_rest)

    def run(self, execution: Execution, deadline: float, *, may_share: bool) -> list[Row]:
        self._askers[id(execution)] = asker()
        try:
            return super().run(execution, deadline, may_share=may_share)
        finally:
            del self._askers[id(execution)]

    def _share(self, lane: _Lane, execution: Execution, deadline: float) -> list[Row] | None:
        try:
            return super()._share(lane, execution, deadline)
        except DatabaseError as ex:
            if ex.reason == ReasonSlug.DEADLINE:  # of a request whose batch goes on without it
                self.world.touched[asker()].append(f"{ex.statement} alone")
            raise

    def _send(self, batch: _Batch, connection: DatabaseConnection, deadline: float) -> None:
        sent, world = list(batch.requests), self.world
        writes = sent[0].execution.statement.writes
        if batch in (self._reads._open, self._writes._open):
            world.fail("a batch is complete before it is sent", "requests may still join")
        if len(sent) > MAX_REQUESTS:
            world.fail("a batch is bounded", f"{len(sent)}")
        if any(request.execution.statement.writes != writes for request in sent):
            world.fail("reads and writes have batches of their own", repr(sent))
        if len(sent) > 1 and not scheduler.has_scheduler():
            world.fail("other threads share nothing", repr(sent))
        world.note("batch", len(sent))
        self._writing += writes and scheduler.has_scheduler()
        if self._writing > max(1, self._size - 1):
            world.fail("writes leave a connection to reads", f"{self._writing} of {self._size}")
        try:
            super()._send(batch, connection, deadline)
        finally:
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
            owed = min(deadline - started, _SHARE * world.plan["deadline"]) - _SLACK
            if ex.reason == ReasonSlug.NO_CONNECTION and world.now < started + owed:
                world.fail(
                    "a request waits in line for its time", f"{world.now - started:.3f} s of {owed:.3f} s"
                )
            raise
        finally:
            is_open = any(lane._open is batch for lane in lanes)
            if is_open or not all(each.has_ended._is_set for each in batch.requests[1:]):
                self.world.fail("a batch ends with its leader", repr(batch))

    def check_at_rest(self) -> None:
        for lane in (self._reads, self._writes):
            if lane._line and not lane._under_way:
                raise Violation("a batch leaves when none is under way", f"{len(lane._line)} wait")
            if not 0 <= lane._under_way <= lane._limit:
                raise Violation("a lane counts its round trips", f"{lane._under_way}")

    def check_at_end(self) -> None:
        lanes = [self._reads, self._writes, *(lane for _, lane in self._alone.values())]
        if any(lane._line or lane._under_way or lane._open for lane in lanes):
            raise Violation("a lane counts its round trips", "one is not empty at the end")
