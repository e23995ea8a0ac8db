"""A simulated world: one clock, one random generator, threads that run one at a time.

A simulated thread is a greenlet of the hub.  Whatever blocks in it switches to the hub, which chooses by the
seed which thread goes on, and advances the clock when none can.  So the same seed gives the same run.
"""

import itertools
from collections import defaultdict, deque
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from math import inf
from random import Random
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet

_START = 1000.0  # of the clock, in seconds
_CALL_SECONDS = 0.000002  # that a look at the clock takes
_STALLS = (0.002, 0.01, 0.05, 0.3, 1.2)  # seconds in which the process does not run
_MAX_STEPS = 100_000
_MAX_CALLS = 400_000  # looks at the clock
Plan = dict[str, Any]  # numbers by name; "faults" has the probability of each fault that is on


def asker() -> object:
    """Return the request for which the current greenlet runs: whoever starts one sets its `request`."""
    return getattr(getcurrent(), "request", None)


def chosen_faults(random: Random, possible: dict[str, float], share: float = 0.4) -> dict[str, float]:
    """Return about a *share* of the *possible* faults, each with a probability up to the one given."""
    return {
        name: round(highest * (1 - random.random()), 4)
        for name, highest in possible.items()
        if random.random() < share
    }


class Violation(BaseException):
    def __init__(self, invariant: str, detail: str) -> None:
        super().__init__(f"{invariant}: {detail}")
        self.invariant = invariant


class Thread:
    """A simulated thread; `locals` are its thread-local values."""

    def __init__(self, world: "World", name: str, call: Callable[[], object]) -> None:
        self.world = world
        self.name = name
        self.ident = next(world.numbers)
        self._is_alive = True
        self.is_blocked = False
        self.value = True
        self.waits = 0
        self.locals: dict[str, Any] = {}
        self.joining: list[Thread] = []
        self.only_waits_in: greenlet | None = None  # the one of its greenlets that may block it
        self.paused = greenlet(partial(self._run, call), world.hub)

    def _run(self, call: Callable[[], object]) -> None:
        try:
            call()
        except (GreenletExit, SystemExit, Violation):
            pass
        except BaseException as ex:  # noqa: BLE001 - a thread of the service never ends by an exception
            self.world.fail("no thread ends by an exception", f"{self.name}: {ex!r}", ex)
        self._is_alive = False
        self.world.wake_all(self.joining)

    def is_alive(self) -> bool:
        return self._is_alive

    def join(self, timeout: float | None = None) -> None:
        if self._is_alive:
            self.world.wait_in(self.joining, timeout)


class World:
    """The clock, the agenda and the threads of one run; *plan* is what the seed has chosen."""

    def __init__(self, seed: int, plan: dict[str, Any]) -> None:
        self.seed, self.plan = seed, plan
        self.faults: dict[str, float] = dict(plan.get("faults", {}))
        self.random = Random(f"run {seed}")
        self.now = _START
        self.hub = getcurrent()
        self.numbers = itertools.count(1)
        self.current: Thread | None = None
        self.threads: list[Thread] = []
        self.trace: list[tuple[Any, ...]] = []
        self.violation: Violation | None = None
        # They raise Violation: called after each step, and when no thread can run.
        self.invariants: list[Callable[[], None]] = []
        self.invariants_at_rest: list[Callable[[], None]] = []
        self.at_exit: list[Callable[[], object]] = []
        self.is_over = False
        self.stalled = 0.0  # seconds in all
        # By whom a fault has touched (a request's name, for example): the faults, by which it may fail.
        self.touched: defaultdict[object, list[str]] = defaultdict(list)
        self.steps = self.calls = 0
        self._preemption = self.faults.get("preemption", 0.0)
        self._stall = self.faults.get("stall", 0.0)
        self._agenda: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._runnable: list[Thread] = []

    def note(self, what: str, *details: object) -> None:
        name = self.current.name if self.current is not None else "-"
        self.trace.append((round(self.now - _START, 6), name, what, *details))

    def fail(self, invariant: str, detail: str, cause: BaseException | None = None) -> None:
        """End the run, because *invariant* does not hold.  Any code may call this; the first one counts."""
        if self.violation is None and not self.is_over:
            self.violation = Violation(invariant, detail)
            self.violation.__cause__ = cause
            self.note("VIOLATION", invariant, detail)

    def quiet(self) -> None:
        self.faults.clear()
        self._preemption = self._stall = 0.0

    def chance(self, fault: str, *whom: object) -> bool:
        """Whether *fault* happens now, to *whom* it will be an excuse."""
        probability = self.faults.get(fault, 0.0)
        if not probability or self.random.random() >= probability:
            return False
        self.note("fault", fault)
        for each in whom:
            self.touched[each].append(fault)
        return True

    def chance_of_raising(self, fault: str, whom: object) -> bool:
        """Whether a fault happens by which a thread of its own would end."""
        name = self.current.name if self.current is not None else ""
        return name != "last-use" and self.chance(fault, whom)

    def monotonic(self) -> float:
        """Return the clock's time.  A thread that looks may be pre-empted, and time passes."""
        self.calls += 1
        if self.calls > _MAX_CALLS:
            self.fail("every loop has an end", "the clock is read again and again")
            self.preempt(always=True)
        self.now += _CALL_SECONDS
        if self._preemption:
            self.preempt()
        return self.now

    def at(self, seconds: float, call: Callable[..., None], *arguments: object) -> None:
        """Make *call* in *seconds*, outside of every thread; it must not block."""
        heappush(self._agenda, (self.now + seconds, next(self.numbers), call, arguments))

    def between(self, low: float, high: float) -> float:
        return low + (high - low) * self.random.random()

    def start(self, name: str, call: Callable[[], object]) -> Thread:
        thread = Thread(self, name, call)
        self.threads.append(thread)
        self._runnable.append(thread)
        return thread

    def block(self, seconds: float | None, *, is_lock: bool = False) -> bool:
        """Suspend the current thread until it is woken (True) or *seconds* have passed (False)."""
        thread = self.current
        if self.is_over or thread is None:
            raise GreenletExit
        if not is_lock and thread.only_waits_in not in (None, getcurrent()):
            self.fail("no request blocks the thread of all", f"{thread.name} for {seconds} s")
        thread.is_blocked = True
        thread.waits += 1
        if seconds is not None and seconds != inf:
            self.at(max(0.0, seconds), self._expire, thread, thread.waits)
        self._leave(thread)
        return thread.value

    def wait_in(self, waiting: Any, seconds: float | None, *, is_lock: bool = False) -> bool:
        thread = self.current
        waiting.append(thread)
        is_woken = self.block(seconds, is_lock=is_lock)
        if thread in waiting:
            waiting.remove(thread)
        return is_woken

    def wake(self, thread: Thread, *, value: bool = True) -> None:
        if thread.is_blocked:
            thread.is_blocked = False
            thread.value = value
            self._runnable.append(thread)

    def wake_all(self, waiting: list[Thread]) -> None:
        woken = waiting.copy()
        waiting.clear()
        for thread in woken:
            self.wake(thread)

    def wake_one(self, waiting: deque[Thread]) -> None:
        while waiting:
            thread = waiting.popleft()
            if thread.is_blocked:
                self.wake(thread)
                return

    def preempt(self, *, always: bool = False) -> None:
        """Let the hub choose which thread goes on, with the probability of the plan."""
        thread = self.current
        if thread is None or self.is_over:
            return
        if self._stall and self.random.random() < self._stall:
            seconds = self.random.choice(_STALLS)
            self.now += seconds
            self.stalled += seconds
            self.note("fault", "stall")
        if always or (self._runnable and self.random.random() < self._preemption):
            self._runnable.append(thread)
            self._leave(thread)

    def _leave(self, thread: Thread) -> None:
        thread.paused = getcurrent()
        self.hub.switch()
        if self.is_over:
            raise GreenletExit

    def _expire(self, thread: Thread, wait: int) -> None:
        if thread.is_blocked and thread.waits == wait:
            self.wake(thread, value=False)

    def run(self, is_done: Callable[[], bool], seconds: float) -> None:
        """Run until *is_done*.  Raises Violation, also if that takes more than *seconds*."""
        end = self.now + seconds
        agenda, runnable, draw = self._agenda, self._runnable, self.random.random
        while not is_done():
            while agenda and agenda[0][0] <= self.now:
                _, _, call, arguments = heappop(agenda)
                call(*arguments)
            if runnable:
                place = int(draw() * len(runnable)) if len(runnable) > 1 else 0
                thread = runnable[place]
                runnable[place] = runnable[-1]
                runnable.pop()
                self.current = thread
                thread.paused.switch()
                self.current = None
            elif agenda and agenda[0][0] <= end:
                self._check(self.invariants_at_rest)
                self.now = max(self.now, agenda[0][0])
                continue
            else:
                waiting = ", ".join(thread.name for thread in self.threads if thread.is_alive())
                self.fail("every wait has an end", f"not done within {seconds:g} s; threads: {waiting}")
            self._check(self.invariants)

    def _check(self, invariants: list[Callable[[], None]]) -> None:
        self.steps += 1
        if self.steps > _MAX_STEPS:
            self.fail("every loop has an end", f"{_MAX_STEPS} steps")
        if self.violation is None:
            try:
                for check in invariants:
                    check()
            except Violation as ex:
                self.fail(ex.invariant, str(ex).partition(": ")[2])
        if self.violation is not None:
            raise self.violation

    def end(self) -> None:
        self.is_over = True
        for thread in self.threads:
            if thread.is_alive():
                thread.paused.throw(GreenletExit)
        for each in (self.threads, self._runnable, self._agenda, self.invariants, self.invariants_at_rest):
            each.clear()
