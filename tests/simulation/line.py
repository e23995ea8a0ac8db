"""The invariants of the pool and of its line, as the docstrings there state them."""

from collections import deque
from itertools import count
from typing import Any

from stackmgr.database.connection import DatabaseConnection, Parameters, Row
from stackmgr.database.pool import Database, Pool, _Waiter
from stackmgr.database.statements import Statement
from tests.simulation.libpq import asker
from tests.simulation.world import Violation, World


class WatchedWaiter(_Waiter):
    """Knows whose turn it is, and whether it has left."""

    def __init__(self, line: "Line") -> None:
        super().__init__()
        self.line = line
        self.turn = line.turn()
        self.has_left = False

    def set(self, conn: DatabaseConnection) -> bool:
        if self.has_left:
            self.line.world.fail("whoever stops waiting leaves the line", "one is passed a connection")
        return super().set(conn)


class WatchedIdle(deque[DatabaseConnection]):
    """The idle connections."""

    line: "Line"

    def pop(self) -> DatabaseConnection:  # type: ignore[override]
        self.line.turn()
        return super().pop()

    def popleft(self) -> DatabaseConnection:
        if len(self) > 1:
            self.line.world.fail("the last returned is acquired first", f"of {len(self)} the first is")
        self.line.turn()
        return super().popleft()


class WatchedPool(Pool):
    """Marks who has left the line."""

    def _leave(self, waiter: _Waiter) -> DatabaseConnection | None:
        connection = super()._leave(waiter)
        assert isinstance(waiter, WatchedWaiter)
        waiter.has_left = True
        return connection


class Line:
    """Watches one Database."""

    def __init__(self, world: World, database: "WatchedDatabase", size: int) -> None:
        self.world = world
        self.pool = database._pool
        self.size = size
        self.seen: list[Any] = []
        self.in_use: dict[int, object] = {}  # by id: connections between `acquire` and `release`
        self.turns: dict[object, int] = {}  # of the requests that acquire a connection
        self._numbers = count()
        self.pool._pool = WatchedIdle()
        self.pool._pool.line = self
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
        """Note an owner."""
        request = self.requester()
        if id(connection) in self.in_use:
            self.world.fail(
                "a connection has one owner", f"{request} gets that of {self.in_use[id(connection)]}"
            )
        self.in_use[id(connection)] = request

    def released(self, connection: DatabaseConnection) -> None:
        if self.in_use.pop(id(connection), self) is self:
            self.world.fail("a connection has one owner", "released twice")

    def check(self) -> None:
        """Check what always holds."""
        pool = self.pool
        for connection in pool._pool:
            if id(connection) in self.in_use:
                raise Violation("a connection is in one place", "idle, and in a session")
        if not 0 <= len(pool._pool) + len(self.in_use) <= pool._nconns <= self.size:
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
        """Check what holds when no thread is on its way."""
        pool = self.pool
        if pool._pool and pool._waiting:
            raise Violation("no one waits while a connection is idle", f"{len(pool._waiting)} wait")
        if pool._waiting and pool._nconns < self.size and not pool._growing and not self._retries():
            raise Violation("while there is room, the pool connects for the line", self._state())

    def _retries(self) -> bool:
        return any(task.action == self.pool._connect_for_line for task in self.pool._sched._queue)

    def check_at_end(self) -> None:
        """Check what holds once nobody asks for a connection."""
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

    def run(self, statement: Statement, parameters: Parameters, deadline: float) -> list[Row]:
        file, world = self.pgconn.socket_file, self.pgconn.world
        if statement.writes and file.ended_at < world.now and "stall" not in world.faults:
            world.fail("no write is sent on a dead connection", statement.name)
        return super().run(statement, parameters, deadline)


class WatchedDatabase(Database):
    """A Database whose owners of connections are watched."""

    line: Line
    _pool: Any

    def acquire(self, deadline: float) -> DatabaseConnection:
        try:
            connection = super().acquire(deadline)
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
        if self._drained_at != drained_at and any(connection in idle for connection in self._pool._pool):
            self.line.world.fail("a drain replaces every connection", "one is still idle")
