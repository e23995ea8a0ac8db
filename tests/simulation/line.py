"""The invariants of the pool and of the line for its connections, as the docstrings there state them."""

from typing import Any

from stackmgr.database.connection import DatabaseConnection
from stackmgr.database.hot_connections import HOT_SECONDS, HotConnections, Waiter
from stackmgr.database.pool import Database
from tests.simulation.world import Violation, World


class WatchedLine(HotConnections):
    """Counts the connections that were passed to a request which has not left the line yet."""

    passed = 0

    def leave(self, waiter: Waiter) -> DatabaseConnection | None:
        connection = super().leave(waiter)
        self.passed -= connection is not None
        return connection

    def _hand_on(self, connection: DatabaseConnection) -> None:
        self.passed += bool(self._line)
        super()._hand_on(connection)


class Line:
    """Watches one Database."""

    def __init__(self, world: World, database: Database, size: int) -> None:
        self.world = world
        self.database = database
        self.hot = database._hot = WatchedLine(size)
        self.size = size
        self.seen: list[Waiter] = []
        self.in_use: dict[int, object] = {}  # by id: connections between `acquire` and `release`
        world.invariants.append(self.check)
        world.invariants_at_rest.append(self.check_at_rest)

    def acquired(self, connection: DatabaseConnection, request: object) -> None:
        """Note an owner."""
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
        hot = self.hot
        if hot._room < 0 or hot._check_outs < 0:
            raise Violation("room is what is left", f"room {hot._room}, check-outs {hot._check_outs}")
        for connection in hot._kept:
            if id(connection) in self.in_use:
                raise Violation("a connection is in one place", "kept, and in a session")
            if connection.closed:
                raise Violation("no closed connection is kept", repr(hot))
        line = hot._line
        if not line and not self.seen:
            return
        if hot._lock.owner is None and hot._kept and line:
            raise Violation("no one waits while a connection is kept", f"{len(line)} wait")
        now = list(line)
        left = [waiter for waiter in self.seen if waiter not in now]
        for waiter in left:
            if waiter.connection is not None and any(
                other in now for other in self.seen[: self.seen.index(waiter)]
            ):
                raise Violation("the line is served in order", "a later request was served first")
        if [waiter for waiter in self.seen if waiter in now] != now[: len(self.seen) - len(left)]:
            raise Violation("the line is served in order", "a request has joined before others")
        self.seen = now

    def check_at_rest(self) -> None:
        """Check what holds when no thread is on its way."""
        hot = self.hot
        if hot._kept and hot._line:
            raise Violation("no one waits while a connection is kept", f"{len(hot._line)} wait")
        outside = len(hot._kept) + len(self.in_use) + hot.passed
        if hot._room + hot._check_outs + outside != self.size:
            raise Violation("room and what is outside are the size", self._state())
        if hot._room and hot._check_outs < len(hot._line) and "no more threads" not in self.world.faults:
            raise Violation("while there is room, the line has its check-outs", self._state())

    def check_at_end(self) -> None:
        """Check what holds once nobody asks for a connection."""
        hot = self.hot
        if hot._line or hot._check_outs or self.in_use or hot._room + len(hot) != self.size:
            raise Violation("no connection and no room is lost", self._state())

    def _state(self) -> str:
        hot = self.hot
        return (
            f"size {self.size}: room {hot._room}, check-outs {hot._check_outs}, kept {len(hot)},"
            f" in use {list(self.in_use.values())}, line {len(hot._line)}"
        )


class WatchedDatabase(Database):
    """A Database whose owners of connections are watched."""

    line: Line

    def acquire(self, deadline: float) -> DatabaseConnection:
        connection = super().acquire(deadline)
        self.line.acquired(connection, self.requester())
        return connection

    def release(self, connection: DatabaseConnection) -> None:
        self.line.released(connection)
        age = self.line.world.now - connection.acquired_at
        super().release(connection)
        if age > HOT_SECONDS and connection in self._hot._kept:
            self.line.world.fail("none stays outside for longer than HOT_SECONDS", f"{age:.1f} s")

    def drain(self) -> None:
        drained_at, kept = self._drained_at, list(self._hot._kept)
        super().drain()
        if self._drained_at != drained_at and any(connection in kept for connection in self._hot._kept):
            self.line.world.fail("a drain replaces every connection", "one is still kept")

    def requester(self) -> Any:
        return None
