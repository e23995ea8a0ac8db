"""What must hold of a worker, each named after the docstring or the comment that states it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from typing import Any

from stackmgr.server import connections, queue
from stackmgr.server.connections import HttpConnections
from stackmgr.server.loop import LOOK_SECONDS, SWEEP_SECONDS, Loop
from stackmgr.server.protocol import CLOSED, IDLE, QUEUED, SERVING, WRITING
from stackmgr.server.queue import RequestQueue
from tests.simulation.kernel import Kernel
from tests.simulation.world import Violation, World

_SLACK = 0.001
_SWEEPS_SECONDS = 2.4 * SWEEP_SECONDS
_LOOKS_SECONDS = 3 * LOOK_SECONDS


class WatchedQueue(RequestQueue[Any]):
    """Checks who is rejected, whose turn it is, and how many run."""

    def __init__(self, world: World, limit: int, seconds: float) -> None:
        super().__init__(limit, seconds)
        self.world = world
        self._greenlets = limit
        self._charged: set[str] = set()  # groups whose requests have held the thread while others waited

    def line(self, line: tuple[str, bool]) -> list[tuple[float, Any, Any]]:
        """Return when each request of a line has arrived, its place and its entry."""
        return list(self._lines.get(line, ()))

    def add(self, place: Any, credential: str, entry: Any, now: float, *, writes: bool = False) -> Any:
        rejected = super().add(place, credential, entry, now, writes=writes)
        if rejected is not None:
            self._note_rejection(rejected, "too many wait", is_due=self.waiting >= queue.LIMIT)
        return rejected

    def take_overdue(self, now: float) -> Iterator[Any]:
        latest = self.world.now - self.world.plan["queue seconds"]
        arrived = {id(entry): at for group in self._lines for at, _, entry in self.line(group)}
        for entry in super().take_overdue(now):
            self._note_rejection(entry, "waited too long", is_due=arrived[id(entry)] <= latest)
            yield entry

    def _note_rejection(self, entry: Any, why: str, *, is_due: bool) -> None:
        name = entry[1].environ["HTTP_X_REQUEST_ID"]
        self.world.touched[name].append(why)
        if not is_due:
            self.world.fail("only overload rejects a request", f"{name}: {why}")

    def accept(self, place: Any, manager_id: str, remember: object = None) -> None:
        super().accept(place, manager_id, remember)
        if self._running.get(manager_id, 0) > self._limit:
            self.world.fail("nobody has more than his share", manager_id)
        if place.key_hash not in self._managers:
            self.world.fail("the key accepted last is remembered", manager_id)

    def take(self) -> Any:
        firsts = {line: waiting[0] for line, waiting in self._lines.items() if self._may_run(line)}
        entry = super().take()
        if entry is not None:
            place = entry[0].place
            arrived, first, _ = firsts[place.group, place.writes]
            free = (at for (group, _), (at, *_) in firsts.items() if group not in self._charged)
            earliest = min(free, default=inf)
            if first is not place or arrived > earliest:
                self.world.fail("requests start in the order of arrival", f"{place.group} of {len(firsts)}")
        return entry

    def leave(self, place: Any, now: float = 0.0, seconds: float = 0.0) -> None:
        if seconds and any((place.group, writes) in self._lines for writes in (False, True)):
            self._charged.add(place.group)
        super().leave(place, now, seconds)

    def _end_line(self, group: str) -> None:
        super()._end_line(group)
        if not any((group, writes) in self._lines for writes in (False, True)):
            self._charged.discard(group)

    def check(self, turned_at: float) -> None:
        """Check what holds after each step; *turned_at* is the end of the worker's last turn."""
        if self._free < 0 or self._free + sum(self._running.values()) != self._greenlets:
            raise Violation("each place is free or in use", f"{self._free} {self._running}")
        lines = [self.line(group) for group in self._lines]
        if sum(map(len, lines)) != self.waiting or self.waiting > queue.LIMIT + 1:
            raise Violation("requests that wait have a bound", f"{self.waiting} wait")
        seconds, oldest = self.world.plan["queue seconds"], min((line[0][0] for line in lines), default=inf)
        # A request that computes keeps all of them waiting.
        if seconds and oldest < turned_at - seconds - _LOOKS_SECONDS - self.world.stalled:
            raise Violation("no request waits for longer than the time-out", f"{seconds} s")

    def check_at_rest(self) -> None:
        if self.has_next():
            raise Violation("no request waits that may run", f"{self._free} are free")


class WatchedConnections(HttpConnections):
    """Checks which connections are closed for others, and excuses their clients."""

    def __init__(self, world: World, kernel: Kernel, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.world, self._kernel = world, kernel
        self._excuse = ""

    @contextmanager
    def _excusing(self, excuse: str) -> Iterator[None]:
        before, self._excuse = self._excuse, excuse
        try:
            yield
        finally:
            self._excuse = before

    def add(self, conn: Any) -> None:
        most = max(self._limit, len(self.open) + (not self.parked))
        super().add(conn)
        if len(self.open) > most:
            self.world.fail("open connections have a bound", f"{len(self.open)}")

    def close_longest_parked(self) -> None:
        if len(self.open) < self._limit and len(self._kernel.files) < self._kernel.limit:
            invariant = "a connection is closed for another only without room for both"
            self.world.fail(invariant, str(len(self.open)))
        with self._excusing("too many connections"):
            super().close_longest_parked()

    def sweep(self) -> Any:
        with self._excusing("memory"):
            overdue = super().sweep()
        for conn in overdue:
            client = conn.sock.stream.client
            is_slow = client.manners.reads_every or "stall" in self.world.faults
            if conn.protocol.state is WRITING and is_slow:
                client.excuse = client.excuse or "reads slowly"
        return overdue

    def close(self, conn: Any) -> None:
        if conn in self.open and self._excuse:
            client, held = conn.sock.stream.client, sum(each.protocol.held for each in self.open)
            client.excuse = client.excuse or self._excuse
            if self._excuse == "memory" and held <= connections.BUFFER_BUDGET:
                self.world.fail("connections are closed for memory only while it is exceeded", str(conn.fd))
        super().close(conn)

    def check_at_rest(self, interest: dict[int, Any], waiting: set[Any]) -> None:
        """Check what holds when no thread can run; *waiting* are the connections in the queue."""
        if self.has_ready:
            raise Violation("what can be done is done", f"{len(self.ready)} and {len(self.receiving)} wait")
        for conn in self.open:
            state, (parked_in, _) = conn.protocol.state, self.parked.get(conn, (None, 0.0))
            events = interest[conn.fd][1] if conn.fd in interest else 0
            if parked_in is None:
                if state not in (QUEUED, SERVING, CLOSED) or (state is QUEUED) > (conn in waiting):
                    raise Violation("each connection is in one place", f"{conn.fd} {state.name}")
            elif parked_in is not state or not events & state.events:
                raise Violation("what is parked is watched", f"{conn.fd} {state.name} {events:x}")


class WatchedLoop(Loop):
    """The loop of a worker, checked after each step, when nothing can run, and at the end."""

    def __init__(self, world: World, worker: Any) -> None:
        super().__init__(worker)
        self.world, self.turns, self.turned_at = world, 0, world.now
        self._over_budget_since = inf
        accept, self.listeners[0].accept = self.listeners[0].accept, self._accept_operators
        self._accept: Callable[[], None] = accept

    def turn(self) -> bool:
        self.turns += 1
        goes_on = super().turn()
        self.turned_at = self.world.now
        return goes_on

    def _accept_operators(self) -> None:
        self._accept()
        if self.listeners[0].paused and self.managers.parked:
            self.world.fail("a manager's connection makes room for an operator's", "an operator waits")

    def check(self) -> None:
        self.queue.check(self.turned_at)
        held = sum(conn.protocol.held for conn in self.managers.parked)
        if held <= connections.BUFFER_BUDGET:
            self._over_budget_since = inf
        self._over_budget_since = min(self._over_budget_since, self.world.now)
        if self._over_budget_since < self.turned_at - _SWEEPS_SECONDS - self.world.stalled:
            raise Violation("memory of connections is within its budget", f"{held} bytes")

    def check_at_rest(self) -> None:
        interest = self.scheduler._epoll.interest
        waiting = {entry[0] for group in self.queue._lines for *_, entry in self.queue.line(group)}
        for each in (self.managers, self.operators):
            each.check_at_rest(interest, waiting)
        for listeners in self.listeners:
            for fd in listeners._sockets:
                if fd not in (*listeners.paused, *listeners.ready) and not interest.get(fd, (None, 0))[1]:
                    raise Violation("listeners are watched", str(fd))
        self.queue.check_at_rest()
        latest = self.world.now + self.world.plan["limits"]["linger"] + _SLACK
        for state, deadline in self.managers.parked.values() if self.stops_at != inf else ():
            if state is IDLE and deadline > latest:
                raise Violation("a stopping worker keeps idle connections for a moment only", f"{deadline}")

    def check_at_end(self) -> None:
        left = [*self.managers.open, *self.operators.open, *self.queue._running, *self.queue._lines]
        left += [*self.scheduler._deadlines, *self.scheduler._waiting]
        if left:
            raise Violation("at the end nothing is left", f"{len(left)} are")
