"""The invariants of the pool and its line, as their docstrings state them."""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

from stackmgr.database.connection import DatabaseConnection, Execution, Row
from stackmgr.database.pool import MIN_DRAIN_INTERVAL, Database, Pool, _Waiter
from stackmgr.database.statements import Statement
from stackmgr.errors import DatabaseError
from tests.simulation.postgres import Server
from tests.simulation.world import Violation, World, asker

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
        current = self.world.current
        return asker() or (current.name if current is not None else None)

    def turn(self) -> int:
        return self.turns.setdefault(self.requester(), next(self._numbers))

    def acquired(self, connection: DatabaseConnection) -> None:
        request = self.requester()
        if id(connection) in self.in_use:
            owner = self.in_use[id(connection)]
            self.world.fail("a connection has one owner", f"{request} gets that of {owner}")
        self.in_use[id(connection)] = request

    def rejected(self, started: float, owed: float, stalled: float) -> None:
        waited, server = self.world.now - started, self.server
        if not owed - _SLACK <= waited <= max(0.0, owed) + _SLACK + stalled and owed > 0:
            self.world.fail("a request waits in line for its time", f"{waited:.3f} s of {owed:.3f} s")
        is_hindered = stalled or owed < _EXCHANGE_SECONDS or any(each.causes() for each in server.verified)
        before = self.world.now - _EXCHANGE_SECONDS
        is_hindered = is_hindered or max(server.hindered_until, server.frozen_until) >= before
        self._note_use()
        if not is_hindered and self.full_at < before:
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

    def is_stale(self) -> bool:
        if self.pgconn.world.chance_of_raising("check fails", asker()):
            raise MemoryError
        return super().is_stale()

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
