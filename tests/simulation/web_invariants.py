"""What must hold of a worker, each named after the docstring or the comment that states it."""

from collections.abc import Callable
from math import inf
from typing import Any

from greenlet import getcurrent

from stackmgr.server import IDLE, READING, memory
from stackmgr.server.connection import ClientConnection, Disconnected
from tests.simulation.preemption import preempt_or_delay
from tests.simulation.process import Process
from tests.simulation.sockets import LocalSocket, Network
from tests.simulation.world import Violation, World

_OVERTAKEN = 3  # times by one other connection, and once more for each look of the main thread at the queue
_ARRIVED_SECONDS = 0.001
_SWEEPS_SECONDS = 1.2  # two of the looks at the deadlines
_SMALL, _HEAD = 1200, 300  # bytes of a small response, of the head of a large one


class Parked(dict[int, ClientConnection]):
    """The parked connections of a worker, which knows who has taken which, and who waits for how long."""

    def __init__(self, world: World, owners: dict[LocalSocket, Any]) -> None:
        super().__init__()
        self._world = world
        self._owners = owners
        self._overtaken: dict[ClientConnection, dict[ClientConnection, int]] = {}
        self.looks = 0
        self.reading_since: dict[ClientConnection, float] = {}
        self._looks_at: dict[ClientConnection, int] = {}

    def pop(self, fd: int, *default: Any) -> Any:
        """Take a connection."""
        preempt_or_delay(self._world)
        conn = super().pop(fd, *default)
        if isinstance(conn, ClientConnection):
            self._owners[conn.sock] = getcurrent()
            self._overtaken.pop(conn, None)
            if self._world.current.name == "requests":  # type: ignore[union-attr]
                self._count(conn)
        return conn

    def __setitem__(self, fd: int, conn: ClientConnection) -> None:
        if self._owners.get(conn.sock) is not getcurrent():
            self._world.fail("one owner for each connection", f"{fd} is parked by another")
        other = self.get(fd)
        if other is not None:
            self._world.fail("nothing is parked twice", f"{fd} {other.phase} {conn.phase}")
        self._owners[conn.sock] = None
        if conn.phase is not READING or conn not in self.reading_since:
            self.reading_since[conn] = self._world.now if conn.phase is READING else inf
        super().__setitem__(fd, conn)
        self._world.preempt()

    def _count(self, served: ClientConnection) -> None:
        """Note that *served* has overtaken all that wait."""
        if "late main thread" in self._world.faults:
            return  # it may have looked at those, and not watch them again yet
        for conn in self.values():
            is_ready = conn.yielded or conn.sock.bytes_since is not None  # type: ignore[attr-defined]
            if conn.phase not in (IDLE, READING) or not is_ready:
                continue
            overtaken = self._overtaken.setdefault(conn, {})
            if not overtaken:
                self._looks_at[conn] = self.looks
            overtaken[served] = overtaken.get(served, 0) + 1
            if overtaken[served] > _OVERTAKEN + self.looks - self._looks_at[conn]:
                self._world.fail("no connection is overtaken again and again", f"{conn.fd} by {served.fd}")


class WorkerInvariants:
    """Watches one worker process."""

    def __init__(self, process: Process, network: Network, owners: dict[LocalSocket, Any]) -> None:
        self._process, self._world, self._owners = process, process.world, owners
        worker = self._worker = process.worker
        plan = self._world.plan
        worker.connections.parked = self._parked = Parked(self._world, owners)
        worker.admin.parked = Parked(self._world, owners)
        self._most_open = plan["worker_connections"] + plan["threads"] + worker_waiting(worker) + 2
        self._tickets: list[tuple[str, object]] = []
        self._excuses: dict[Any, str] = {}  # by thread
        worker._expire = self._checked_expiry(worker._expire)
        worker.connections.poll_waiting = self._counted_look(worker.connections.poll_waiting)
        worker.handler.shares.enter = self._checked_enter(worker.handler.shares.enter)
        for one in (worker.connections, worker.admin):
            one.close = self._noted_close(one.close)
            one.close_longest_parked = self._excusing(one.close_longest_parked, "too many connections")
        worker.memory._close_stalled = self._excusing(worker.memory._close_stalled, "memory")

    @property
    def has_ended(self) -> bool:
        return self._process.has_ended

    # What is looked at while it happens.

    def _checked_expiry(self, expire: Callable[[Any], None]) -> Callable[[Any], None]:
        def checked(conn: Any) -> None:
            phase, since = conn.phase, conn.sock.bytes_since
            has_request = conn.request is None and b"\r\n\r\n" in conn.inbox
            if conn.deadline >= self._world.now:
                self._world.fail("the sweep takes none that was served meanwhile", f"{conn.fd} {phase}")
            try:
                expire(conn)
            except Disconnected:
                if not conn.sock.is_reset:
                    self._check_expired(phase, since, conn, has_request)
                raise
            if conn.closing:
                self._check_expired(phase, since, conn, has_request)

        return checked

    def _check_expired(self, phase: Any, since: float | None, conn: Any, has_request: bool) -> None:
        if phase not in (IDLE, READING):
            conn.sock.remote.holder.excuse = "deadline"
            return
        if not has_request:
            conn.sock.remote.holder.excuse = "deadline"
        if since is not None and self._world.now - since > _ARRIVED_SECONDS:
            self._world.fail(
                "a deadline does not end a connection whose bytes have arrived",
                f"{conn.fd}: for {self._world.now - since:.3f} s",
            )

    def _counted_look(self, look: Callable[[], Any]) -> Callable[[], Any]:
        def counted() -> Any:
            self._parked.looks += 1
            return look()

        return counted

    def _noted_close(self, close: Callable[[Any], None]) -> Callable[[Any], None]:
        def noted(conn: Any) -> None:
            excuse, holder = self._excuses.get(self._world.current), conn.sock.remote.holder
            if excuse is not None and holder is not None:
                holder.excuse = excuse
            close(conn)

        return noted

    def _excusing(self, close: Callable[..., Any], excuse: str) -> Callable[..., Any]:
        """Let the clients whose connections this thread closes meanwhile expect nothing."""

        def excused(*arguments: Any) -> Any:
            thread = self._world.current
            self._excuses[thread] = excuse
            try:
                return close(*arguments)
            finally:
                del self._excuses[thread]

        return excused

    def _checked_enter(self, enter: Callable[[str, float], bool]) -> Callable[[str, float], bool]:
        shares = self._worker.handler.shares

        def checked(key: str, seconds: float) -> bool:
            ticket = key, object()
            self._tickets.append(ticket)
            try:
                is_admitted = enter(key, seconds)
                if is_admitted:
                    same = [each for each in self._tickets if each[0] == key]
                    waiting = sum(turn[0] == key for turn in shares._waiting)
                    if same.index(ticket) >= len(same) - waiting:
                        self._world.fail("requests of a key are admitted in order", key)
            finally:
                self._tickets.remove(ticket)
            return is_admitted

        return checked

    # What is looked at after each step.

    def check(self) -> None:
        """Raise Violation for what does not hold."""
        if self._process.has_ended:
            return
        self._check_shares()
        connections = self._worker.connections
        if len(connections.open) > self._most_open:
            raise Violation("open connections have a bound", str(len(connections.open)))
        self._check_memory()
        self._check_reading()

    def _check_memory(self) -> None:
        """Check that large responses have reserved their room."""
        small = _SMALL + self._world.plan["limits"]["outbox"]
        open_now = self._worker.connections.open
        large = [max(conn.outbox.size, conn.capacity.reserved) for conn in open_now]
        large = [size - _HEAD for size in large if size > small]
        if large and sum(large) > max(memory.MEMORY_LIMIT_BYTES, *large):
            raise Violation("memory of responses is within its bound", f"{sum(large)} bytes")

    def _check_reading(self) -> None:
        """Check that a part of a request has not been there for longer than its deadline."""
        now, since = self._world.now, self._parked.reading_since
        latest = now - self._world.plan["limits"]["read deadline"] - _SWEEPS_SECONDS - self._world.stalled
        for fd, conn in self._parked.items():
            if conn.phase is READING and since[conn] < latest and conn.sock.bytes_since is None:
                raise Violation("a deadline is for the whole phase", f"{fd} has been reading too long")

    def _check_shares(self) -> None:
        shares = self._worker.handler.shares
        if shares.free < 0 or shares.free + sum(shares._running.values()) != self._world.plan["threads"]:
            raise Violation("each share is free or in use", f"{shares.free} {shares._running}")
        for key, signal in shares._waiting:
            if shares.free and shares._running.get(key, 0) < shares._share and not signal._is_set:
                raise Violation("the first that may run is admitted", key)

    def check_at_rest(self) -> None:
        """Check what holds when no thread can run."""
        if self._process.has_ended or self._process.main.is_late:
            return
        worker = self._worker
        scheduler, thread = worker.scheduler, worker.thread.simulated
        if thread is None or thread not in scheduler._epoll.waiting:  # a request blocks the thread
            return
        for connections in (worker.connections, worker.admin):
            self._check_connections(connections)
        for listeners in (worker.listeners, worker.admin_listeners):
            connections = listeners._connections
            for fd in listeners._sockets:
                watched = connections.epoll.interest.get(fd, (None, 0))[1]
                if not watched and fd not in connections.paused and not scheduler._deferred:
                    raise Violation("listeners are watched", str(fd))
        if worker.connections.epoll.events() and scheduler._wanted() > 0:
            raise Violation("no request waits while a greenlet is idle", f"{len(scheduler._idle)} are idle")

    def _check_connections(self, connections: Any) -> None:
        interest = connections.epoll.interest
        for fd, conn in connections.parked.items():
            events = interest[fd][1] if fd in interest else 0
            if not events & conn.events or conn.sock.number != fd:
                raise Violation("what is parked is watched", f"{fd} {conn.phase} {events:x}")
        idle = set(map(id, self._worker.scheduler._idle))
        for conn in connections.open:
            owner = self._owners.get(conn.sock)
            if owner is None and connections.parked.get(conn.fd) is not conn:
                raise Violation("one owner for each connection", f"{conn.fd} has none")
            if owner is not None and (owner.dead or id(owner) in idle or owner is self._process.main.paused):
                raise Violation("one owner for each connection", f"{conn.fd} is not parked by its taker")
        if connections.marker_is_queued and not interest[connections.marker][1]:
            raise Violation("the marker is in the queue", "it is not")

    def check_end(self) -> None:
        """Check what is left once all clients have gone."""
        worker = self._worker
        scheduler, shares = worker.scheduler, worker.handler.shares
        left = {
            "open": len(worker.connections.open) + len(worker.admin.open),
            "parked": len(worker.connections.parked) + len(worker.admin.parked),
            "running": len(shares._running),
            "waiting for a share": len(shares._waiting),
            "waiting for room": worker.memory._waiting,
            "waiting greenlets": len(scheduler._deadlines) + len(scheduler._waiting),
            "busy greenlets": scheduler._number - len(scheduler._idle),
        }
        if any(left.values()):
            self._world.fail(
                "at the end nothing is left", ", ".join(f"{n} {what}" for what, n in left.items() if n)
            )


def worker_waiting(worker: Any) -> int:
    """Return how many requests may wait in greenlets."""
    return int(worker.scheduler._number - worker.cfg.threads)


def watch_owners(network: Network) -> dict[LocalSocket, Any]:
    """Return the owner of each accepted socket; whoever else uses one fails the run."""
    owners: dict[LocalSocket, Any] = {}

    def accepted(local: LocalSocket) -> None:
        owners[local] = getcurrent()

    def used(local: LocalSocket) -> None:
        if local in owners and owners[local] is not getcurrent():
            state = "parked" if owners[local] is None else "another's"
            network.world.fail("one owner for each connection", f"{local.number} is used while {state}")

    network.accepted, network.used = accepted, used
    return owners
