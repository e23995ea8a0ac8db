"""What must hold of a worker, each named after the docstring or the comment that states it."""

from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any

from stackmgr.server import connections
from stackmgr.server.connection import ClientConnection
from stackmgr.server.protocol import CLOSED, DRAINING, IDLE, QUEUED, READING, SERVING, WRITING
from stackmgr.server.queue import _GRACE_SECONDS
from tests.simulation.process import Process
from tests.simulation.world import Violation

_ARRIVED_SECONDS = 0.001
_SWEEPS_SECONDS = 1.2  # two of the looks at the deadlines
_LOOKS_SECONDS = 0.3  # two of the looks at the queue


class WorkerInvariants:
    """Watches one worker process."""

    def __init__(self, process: Process) -> None:
        self._process, self._world = process, process.world
        self._log, made = process.worker.log, process.worker.loop
        self._loop = made
        self._limits = self._world.plan["limits"]
        self._serving: set[Any] = set()
        self._states: dict[Any, tuple[Any, float]] = {}  # of each connection, and since when
        self._rejections = 0
        self._over_budget_since = inf
        # By the first of a line and another group: how often the latter was taken from meanwhile.
        self._turns: dict[tuple[Any, ...], float] = {}  # the last one of a group while a request waited
        self._last_turns: dict[str, float] = {}  # of groups
        self._excuse = ""
        made._step = self._checked_step(made._step)
        made.handler.respond = self._noted_response(made.handler.respond)
        queue = made.queue
        queue.take, queue.add = self._checked_take(queue.take), self._checked_add(queue.add)
        queue.take_overdue = self._checked_overdue(queue.take_overdue)
        queue.accept = self._checked_acceptance(queue.accept)
        made.listeners[0].accept = self._checked_accept(made.listeners[0].accept)
        for one in (made.managers, made.operators):
            one.add, one.park = self._checked_room(one, one.add), self._noted_park(one, one.park)
            one.close = self._noted_close(one, one.close)
            is_full = partial(self._is_full, one)
            one.close_longest_parked = self._excusing(
                one.close_longest_parked, "too many connections", is_full
            )
            one.sweep = self._excusing(one.sweep, "memory", lambda: True)

    @property
    def has_ended(self) -> bool:
        return self._process.has_ended

    # What is looked at while it happens.

    def _checked_step(self, step: Callable[..., None]) -> Callable[..., None]:
        def checked(one: Any, conn: Any, act: Any) -> None:
            protocol, since = conn.protocol, conn.sock.bytes_since
            before, entered = protocol.state, self._states.get(conn, (None, 0.0))[1]
            has_request = protocol._request is None and b"\r\n\r\n" in protocol._inbox
            step(one, conn, act)
            if act is not ClientConnection.expire or protocol.state is before or conn.sock.is_reset:
                return
            if protocol.state is CLOSED or before is READING:
                passed = self._world.now - entered
                self._check_expired(before, passed, since, conn, has_request)

        return checked

    def _check_expired(
        self, state: Any, passed: float, since: float | None, conn: Any, has_request: bool
    ) -> None:
        holder = conn.sock.remote.holder
        if state is WRITING:
            self._check_reader(conn)
            return
        if state is READING:
            holder.has_timed_out = True
        elif not has_request:
            holder.excuse = "deadline"
        seconds = state.seconds
        if state is IDLE:
            seconds = min(seconds, self._world.plan["keepalive"] or seconds, self._limits["linger"])
        if passed < seconds - _ARRIVED_SECONDS:
            self._world.fail("no deadline ends a connection early", f"{state.name} after {passed:.3f} s")
        if state is DRAINING:
            return
        if since is not None and self._world.now - since > _ARRIVED_SECONDS:
            self._world.fail(
                "a deadline does not end a connection whose bytes have arrived",
                f"{conn.fd}: for {self._world.now - since:.3f} s",
            )

    def _noted_response(self, respond: Callable[..., None]) -> Callable[..., None]:
        def noted(conn: Any, request: Any) -> None:
            self._serving.add(conn)
            try:
                respond(conn, request)
            finally:
                self._serving.discard(conn)

        return noted

    def _noted_park(self, one: Any, park: Callable[[Any], None]) -> Callable[[Any], None]:
        def noted(conn: Any) -> None:
            before = one.parked.get(conn)
            park(conn)
            after = one.parked.get(conn)
            if after is not None and (before is None or after[0] is not before[0]):
                self._states[conn] = after[0], self._world.now

        return noted

    def _check_reader(self, conn: Any) -> None:
        """Check that a client that is cut off has not read enough; excuse that it has no response."""
        holder, seconds = conn.sock.remote.holder, self._limits["write deadline"]
        taken = holder.taken_since(self._world.now - seconds)
        if taken >= self._limits["write progress"]:
            self._world.fail("no reader that makes progress is cut off", f"{taken} bytes in {seconds:g} s")
        holder.excuse = "reads too slowly"

    def _noted_close(self, one: Any, close: Callable[[Any], None]) -> Callable[[Any], None]:
        def noted(conn: Any) -> None:
            if self._excuse and conn in one.open:
                conn.sock.remote.holder.excuse = self._excuse
                if (
                    self._excuse == "memory"
                    and sum(each.protocol.held for each in one.open) <= connections.BUFFER_BUDGET
                ):
                    self._world.fail(
                        "connections are closed for memory only while it is exceeded", f"{conn.fd}"
                    )
            self._states.pop(conn, None)
            close(conn)

        return noted

    def _is_full(self, one: Any) -> bool:
        kernel = self._process.network.kernel
        return len(one.open) >= one._limit or len(kernel.files) >= kernel.limit

    def _checked_accept(self, accept: Callable[[], None]) -> Callable[[], None]:
        def checked() -> None:
            accept()
            if self._loop.listeners[0].paused and self._loop.managers.parked:
                self._world.fail("a manager's connection makes room for an operator's", "an operator waits")

        return checked

    def _checked_room(self, one: Any, add: Callable[[Any], None]) -> Callable[[Any], None]:
        def checked(conn: Any) -> None:
            most = max(one._limit, len(one.open) + (not one.parked))
            add(conn)
            self._states[conn] = IDLE, self._world.now
            if len(one.open) > most:
                self._world.fail("open connections have a bound", f"{len(one.open)}")

        return checked

    def _checked_add(self, add: Callable[..., Any]) -> Callable[..., Any]:
        def checked(*arguments: Any) -> Any:
            rejected = add(*arguments)
            if rejected is not None:
                self._reject(
                    rejected, "full queue", is_due=self._loop.queue.waiting >= self._limits["waiting"]
                )
            return rejected

        return checked

    def _checked_overdue(self, take_overdue: Callable[[float], Any]) -> Callable[[float], Any]:
        def checked(latest: float) -> Any:
            since = {each[2][0]: each[0] for line in self._loop.queue._lines.values() for each in line}
            for entry in take_overdue(latest):
                waited = self._world.now - since[entry[0]]
                self._reject(entry, "waited too long", is_due=waited >= self._world.plan["queue seconds"])
                yield entry

        return checked

    def _reject(self, entry: Any, why: str, *, is_due: bool) -> None:
        """Note the reason for a 503."""
        self._rejections += 1
        name = entry[1].environ["HTTP_X_REQUEST_ID"]
        self._world.touched[name].append(why)
        if not is_due:
            self._world.fail("only overload rejects a request", f"{name}: {why}")

    def _checked_acceptance(self, accept: Callable[..., None]) -> Callable[..., None]:
        queue = self._loop.queue

        def checked(place: Any, manager_id: str, remember: object = None) -> None:
            accept(place, manager_id, remember)
            if queue._running.get(manager_id, 0) > queue._limit:
                self._world.fail("nobody has more than his share", manager_id)
            if queue._managers.get(place.key_hash) != (manager_id, remember):
                self._world.fail("the key accepted last is remembered", manager_id)

        return checked

    def _excusing(
        self, close: Callable[[], Any], excuse: str, is_due: Callable[[], bool]
    ) -> Callable[[], Any]:
        """Let the clients whose connections are closed meanwhile expect nothing."""

        def excused() -> Any:
            if not is_due():
                self._world.fail("a connection is closed for another only without room for both", excuse)
            before, self._excuse = self._excuse, excuse
            try:
                return close()
            finally:
                self._excuse = before

        return excused

    def _may_run(self, group: str) -> bool:
        queue = self._loop.queue
        limit = queue._limit if group else queue._unverified_limit
        return bool(queue._free) and queue._running.get(group, 0) < limit

    def _checked_take(self, take: Callable[[float], Any]) -> Callable[[float], Any]:
        queue = self._loop.queue

        def checked(now: float) -> Any:
            may_run = [group for group in queue._lines if self._may_run(group)]
            arrivals = {each[2][0]: each[0] for line in queue._lines.values() for each in line}
            was_admitted, lengths = (
                bool(queue._admitted),
                {group: len(queue._lines[group]) for group in may_run},
            )
            entry = take(now)
            if entry is None or was_admitted:
                return entry
            group = entry[0].place.group
            if any(each[0] < arrivals[entry[0]] for each in queue._lines.get(group, ())):
                self._world.fail("a line is in the order of arrival", f"{len(arrivals)} wait")
            if not group and entry[0].place.key_hash in queue._managers:
                self._world.fail("a request counts as its manager's", f"{len(arrivals)} wait")
            for other in may_run:
                if len(queue._lines.get(other, ())) < lengths[other]:
                    continue  # it had its turn, if only to join the line of a manager
                arrived, place, _ = queue._lines[other][0]
                since = max(arrived + _GRACE_SECONDS, self._last_turns.get(other, 0.0))
                if self._turns.get((place, group), 0.0) > since:
                    self._world.fail("the lines have their turns one after the other", f"{group}, {other}")
                self._turns[place, group] = now
            self._last_turns[group] = now
            return entry

        return checked

    # What is looked at after each step.

    def check(self) -> None:
        """Raise Violation for what does not hold."""
        if self._process.has_ended:
            return
        if self._log.rejections > self._rejections:
            raise Violation("a rejection is reported once", f"{self._log.rejections}")
        self._check_queue()
        self._check_memory()
        self._check_reading()

    def _check_queue(self) -> None:
        queue, plan = self._loop.queue, self._world.plan
        if queue._free < 0 or queue._free + sum(queue._running.values()) != plan["threads"]:
            raise Violation("each place is free or in use", f"{queue._free} {queue._running}")
        waiting = [each for line in queue._lines.values() for each in line]
        if len(waiting) != queue.waiting or queue.waiting > self._limits["waiting"] + 1:
            raise Violation("requests that wait have a bound", f"{queue.waiting} {len(waiting)}")
        oldest = min((since for since, *_ in waiting), default=inf)
        seconds = plan["queue seconds"]
        # A request that blocks the thread, or computes, keeps all of them waiting.
        if seconds and oldest < self._process.turned_at - seconds - _LOOKS_SECONDS - self._world.stalled:
            raise Violation("no request waits for longer than the time-out", f"{seconds} s")

    def _check_memory(self) -> None:
        """Check that more than the budget is not held for longer than a sweep takes."""
        parked = self._loop.managers.parked
        if sum(conn.protocol.held for conn in parked) <= connections.BUFFER_BUDGET:
            self._over_budget_since = inf
        self._over_budget_since = min(self._over_budget_since, self._world.now)
        latest = self._process.turned_at - _SWEEPS_SECONDS - self._world.stalled
        if self._over_budget_since < latest:
            raise Violation("memory of connections is within its budget", f"{len(parked)} are parked")

    def _check_reading(self) -> None:
        """Check that a part of a request has not been there for longer than its deadline."""
        latest = self._process.turned_at - self._limits["read deadline"]
        for conn, (state, since) in self._states.items():
            is_late = since < latest - _SWEEPS_SECONDS - self._world.stalled
            if is_late and state is READING is conn.protocol.state and conn.sock.bytes_since is None:
                raise Violation("a deadline is for the whole state", f"{conn.fd} has been reading too long")

    def check_at_rest(self) -> None:
        """Check what holds when no thread can run."""
        made, main = self._loop, self._process.main
        if (
            self._process.has_ended or main not in made.scheduler._epoll.waiting
        ):  # a request blocks the thread
            return
        for one in (made.managers, made.operators):
            self._check_connections(one)
        interest = made.scheduler._epoll.interest
        for listeners in made.listeners:
            for fd in listeners._sockets:
                watched = interest.get(fd, (None, 0))[1]
                if not watched and fd not in listeners.paused and fd not in listeners.ready:
                    raise Violation("listeners are watched", str(fd))
        if made.queue._admitted or any(map(self._may_run, made.queue._lines)):
            raise Violation("no request waits that may run", f"{made.queue._free} are free")

    def _check_connections(self, one: Any) -> None:
        interest = self._loop.scheduler._epoll.interest
        if one.has_ready:
            raise Violation("what can be done is done", f"{len(one.ready)} and {len(one.receiving)} wait")
        for conn, (state, deadline) in one.parked.items():
            events = interest[conn.fd][1] if conn.fd in interest else 0
            is_stopping = self._loop.stops_at != inf and state is IDLE
            if is_stopping and deadline > self._world.now + self._limits["linger"] + _ARRIVED_SECONDS:
                raise Violation("a stopping worker keeps idle connections for a moment only", f"{conn.fd}")
            if not events & state.events or conn.sock.number != conn.fd or state is not conn.protocol.state:
                raise Violation("what is parked is watched", f"{conn.fd} {state.name} {events:x}")
        queue = self._loop.queue
        waiting = {each[2][0] for line in queue._lines.values() for each in line}
        for conn in one.open:
            places, state = (conn in one.parked, conn in waiting, conn in self._serving), conn.protocol.state
            expected = state not in (QUEUED, SERVING), state is QUEUED, state is SERVING
            if places != expected and (state is not CLOSED or places[0] or sum(places) != 1):
                raise Violation("each connection is in one place", f"{conn.fd} {state.name} {places}")

    def check_end(self) -> None:
        """Check what is left once all clients have gone."""
        made = self._loop
        scheduler = made.scheduler
        left = {
            "open": len(made.managers.open) + len(made.operators.open),
            "parked": len(made.managers.parked) + len(made.operators.parked),
            "running": len(made.queue._running),
            "waiting for their turn": made.queue.waiting,
            "waiting greenlets": len(scheduler._deadlines) + len(scheduler._waiting),
        }
        if any(left.values()):
            self._world.fail(
                "at the end nothing is left", ", ".join(f"{n} {what}" for what, n in left.items() if n)
            )
