"""What must hold of a worker, each named after the docstring or the comment that states it."""

from collections.abc import Iterator
from math import inf
from typing import Any

from stackmgr.server import clients, queue
from stackmgr.server.clients import Clients
from stackmgr.server.loop import LOOK_SECONDS, Loop
from stackmgr.server.queue import RequestQueue
from tests.simulation.kernel import Kernel
from tests.simulation.world import Violation, World

_SLACK = 0.001
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
            self._check_rejection("too many wait", is_due=self.waiting >= queue.LIMIT)
        return rejected

    def take_overdue(self, now: float) -> Iterator[Any]:
        latest = self.world.now - self.world.plan["queue seconds"]
        arrived = {entry: at for group in self._lines for at, _, entry in self.line(group)}
        for entry in super().take_overdue(now):
            self._check_rejection("waited too long", is_due=arrived[entry] <= latest)
            yield entry

    def _check_rejection(self, why: str, *, is_due: bool) -> None:
        if not is_due:
            self.world.fail("only overload rejects a request", why)

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
            first = next((each for each in firsts.items() if each[1][2] is entry), None)
            arrived = inf if first is None else first[1][0]
            free = (at for (group, _), (at, *_) in firsts.items() if group not in self._charged)
            earliest = min(free, default=inf)
            if first is None or arrived > earliest:
                self.world.fail("requests start in the order of arrival", f"{first} of {len(firsts)}")
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


class WatchedClients(Clients):
    """Checks which connections are closed for others, and excuses their clients."""

    def __init__(self, world: World, kernel: Kernel, *arguments: Any) -> None:
        self.world, self._kernel = world, kernel
        super().__init__(*arguments)

    def _accepted(self, listener: Any) -> Any:
        most = max(self._limit, len(self.open) + (not self.waiting))
        for found in super()._accepted(listener):
            if len(self.open) > most:
                self.world.fail("open connections have a bound", f"{len(self.open)}")
            yield found
            most = max(self._limit, len(self.open) + (not self.waiting))

    def close_longest_waiting(self) -> bool:
        if len(self.open) < self._limit and len(self._kernel.files) < self._kernel.limit:
            invariant = "a connection is closed for another only without room for both"
            self.world.fail(invariant, str(len(self.open)))
        if len(self.open) < self._limit and self is self._loop.operators and self._loop.managers.waiting:
            self.world.fail("a manager's connection makes room for an operator's", "it does not")
        for client in [*self.waiting][:1]:
            self._excuse(client, "too many connections")
        return super().close_longest_waiting()

    def hold(self, client: Any, size: int) -> None:
        before = set(self.open)
        super().hold(client, size)
        for closed in before - self.open:
            self._excuse(closed, "memory")
        if self._held > clients.BUFFER_BUDGET or self._held != sum(each.held for each in self.open):
            self.world.fail("memory of connections is within its budget", f"{self._held} bytes")

    def close(self, client: Any) -> None:
        is_slow = client.sock.stream.client.manners.reads_every or "stall" in self.world.faults
        if client in self.open and client.held and is_slow:
            self._excuse(client, "reads slowly")
        super().close(client)

    def _excuse(self, client: Any, why: str) -> None:
        found = client.sock.stream.client
        found.excuse = found.excuse or why

    def check_at_rest(self, waiting: dict[int, Any], interest: dict[int, Any]) -> None:
        """Check what holds when no thread can run."""
        if self.heads or self.bodies:
            raise Violation("what can be done is done", f"{len(self.heads)} and {len(self.bodies)} wait")
        if not self.open.issuperset({**self.waiting, **self._holding}):
            raise Violation("who is closed neither waits nor holds bytes", f"{len(self.waiting)} wait")
        for client in self.waiting:
            if client.fd not in waiting or not interest[client.fd][1]:
                raise Violation("whoever waits for bytes is watched", str(client.fd))
        for listener in self._listeners:
            fd = listener.fileno()
            if fd in waiting and not interest[fd][1]:
                raise Violation("listeners are watched", str(fd))


class WatchedLoop(Loop):
    """The loop of a worker, checked after each step, when nothing can run, and at the end."""

    def __init__(self, world: World, worker: Any) -> None:
        super().__init__(worker)
        self.world, self.turned_at, self.turns = world, world.now, 0

    def turn(self) -> bool:
        self.turns += 1
        goes_on = super().turn()
        self.turned_at = self.world.now
        return goes_on

    def check(self) -> None:
        self.queue.check(self.turned_at)

    def check_at_rest(self) -> None:
        scheduler = self.scheduler
        for each in (self.managers, self.operators):
            each.check_at_rest(scheduler._waiting, scheduler._epoll.interest)
        self.queue.check_at_rest()
        latest = self.world.now + self.world.plan["limits"]["linger"] + _SLACK
        for client in self.managers.waiting if self.stops_at != inf else ():
            if scheduler._deadlines.get(client.serve, 0.0) > latest:
                raise Violation("a stopping worker keeps idle connections for a moment only", client.peer)

    def check_at_end(self) -> None:
        left = [*self.managers.open, *self.operators.open, *self.queue._running, *self.queue._lines]
        if left or self.managers._held or self.managers._holding:
            raise Violation("at the end nothing is left", f"{len(left)} are")
