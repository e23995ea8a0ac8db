"""The scheduler of a worker: its main thread serves many requests at once, each in a greenlet.

A request that has to wait switches to the scheduler, which goes on with another.  DECISIONS.md says why.

Whatever waits during a request does so by `wait_for`, `Signal`, `result` or `call_in_thread`; what
blocks in any other way stops the whole worker.  In a thread without a scheduler, as in commands, they block.
The invariants:

- A greenlet runs until it waits.  What it does between two waits is atomic for the other requests of the
  worker, though not for its other threads.  No lock is held during a wait.
- A greenlet waits for one thing at a time, and no two for the same descriptor.
- Any thread may call `Signal.set` and `Scheduler.wake`; all else is for the thread that runs the scheduler.
"""

import atexit
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from math import inf
from time import monotonic
from typing import TypeVar

from greenlet import getcurrent, greenlet

READABLE = select.EPOLLIN
WRITABLE = select.EPOLLOUT

_MAX_EVENTS = 64  # handled between two looks at the deadlines

_Result = TypeVar("_Result")


class Scheduler:
    """Runs calls in greenlets, and handlers of descriptors, in the thread that calls `run`."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[int], object]] = {}  # by descriptor: called with its events
        self._waiting: dict[int, greenlet] = {}  # by descriptor
        self._deadlines: dict[greenlet, float] = {}  # of every greenlet that waits
        self._next_deadline = inf  # or earlier: a wait that has ended does not move it
        self._signals: deque[Signal] = deque()  # that have been set
        self._ending_turn: deque[greenlet] = deque()
        # Kept, because to make one costs ten times as much as to start a call.
        self._idle: list[greenlet] = []
        # For which each has run its present call; of the one that runs, less the time at which it began to.
        self._seconds: dict[greenlet, float] = {}
        self._wake_up = os.eventfd(0)
        self._main = getcurrent()
        self._thread = 0
        self.watch(self._wake_up, READABLE, lambda _: os.eventfd_read(self._wake_up))

    def run(self, turn: Callable[[], bool], idle_seconds: Callable[[], float]) -> None:
        """Take turns as long as *turn*, which is called after what has become ready has run, returns True.

        At the end of a turn, *idle_seconds* returns for how long events may be waited for.
        """
        self._main, self._thread = getcurrent(), threading.get_ident()
        _this.scheduler = self
        try:
            while turn():
                for _ in range(len(self._ending_turn)):
                    self._switch(self._ending_turn.popleft(), None)
                self._handle_ready(idle_seconds())
        finally:
            _this.scheduler = None

    def start(self, call: Callable[[], None]) -> None:
        """Run *call*, which must not raise, in a greenlet until it waits."""
        if not self._idle:
            greenlet(self._run_calls).switch()
        idle = self._idle.pop()
        self._seconds[idle] = 0.0
        self._switch(idle, call)

    def _switch(self, target: greenlet, value: object) -> None:
        self._seconds[target] -= monotonic()
        target.switch(value)
        self._seconds[target] += monotonic()

    def seconds_run(self) -> float:
        """Return for how many seconds the present call has run, without its waits."""
        return self._seconds[getcurrent()] + monotonic()

    def watch(self, descriptor: int, events: int, handle: Callable[[int], object]) -> None:
        """Call *handle* with the events of a descriptor, in each turn that has any."""
        self._handlers[descriptor] = handle
        self._epoll.register(descriptor, events)

    def change(self, descriptor: int, events: int) -> None:
        """Watch a descriptor for other *events*, or with 0 for none."""
        if not events:
            self._epoll.unregister(descriptor)
            return
        try:
            self._epoll.modify(descriptor, events)
        except FileNotFoundError:
            self._epoll.register(descriptor, events)

    def forget(self, descriptor: int) -> None:
        """Drop the handler of a descriptor; the kernel drops the rest when it is closed."""
        self._handlers.pop(descriptor, None)

    def wake(self) -> None:
        """Make the thread take a turn even without an event.  Any thread may call this."""
        os.eventfd_write(self._wake_up, 1)

    def _run_calls(self) -> None:
        while True:
            self._idle.append(getcurrent())
            self._main.switch()()  # without a name: nothing of a request outlives it

    def _handle_ready(self, seconds: float) -> None:
        """Wait for at most *seconds*; resume the greenlets that need not wait any longer, call handlers."""
        if self._signals or self._ending_turn:
            seconds = 0.0
        elif self._next_deadline != inf:
            seconds = max(0.0, min(seconds, self._next_deadline - monotonic()))
        for descriptor, events in self._epoll.poll(seconds, _MAX_EVENTS):
            waiting = self._waiting.pop(descriptor, None)
            if waiting is not None:
                self._resume(waiting, is_ready=True)
            elif (handle := self._handlers.get(descriptor)) is not None:
                handle(events)
        while self._signals:
            waiting = self._signals.popleft().waiting
            if waiting is not None:
                self._resume(waiting, is_ready=True)
        if monotonic() >= self._next_deadline:
            self._expire()

    def _expire(self) -> None:
        """Resume the greenlets whose time has passed."""
        now = monotonic()
        for waiting, deadline in list(self._deadlines.items()):
            if deadline <= now and self._deadlines.get(waiting) == deadline:
                self._resume(waiting, is_ready=False)
        self._next_deadline = min(self._deadlines.values(), default=inf)

    def _resume(self, waiting: greenlet, *, is_ready: bool) -> None:
        del self._deadlines[waiting]
        self._switch(waiting, is_ready)

    def wait(self, seconds: float) -> bool:
        """Let other greenlets run; return whether this one was resumed within *seconds*."""
        deadline = monotonic() + seconds
        self._deadlines[getcurrent()] = deadline
        self._next_deadline = min(self._next_deadline, deadline)
        is_ready: bool = self._main.switch()
        return is_ready

    def wait_for(self, descriptor: int, events: int, seconds: float) -> bool:
        """See the function of this name."""
        self.change(descriptor, events | select.EPOLLONESHOT)
        self._waiting[descriptor] = getcurrent()
        is_ready = self.wait(seconds)
        if not is_ready:
            del self._waiting[descriptor]  # a late event resumes no greenlet
        return is_ready

    def end_turn(self) -> None:
        """See the function of this name."""
        self._ending_turn.append(getcurrent())
        self._main.switch()

    def notice(self, signal: "Signal") -> None:
        """Resume the greenlet that waits for *signal*, soon.  Any thread may call this."""
        self._signals.append(signal)
        if threading.get_ident() != self._thread:
            self.wake()


class _Thread(threading.local):
    scheduler: Scheduler | None = None


_this = _Thread()


class Signal:
    """An event that happens once.  The thread that creates it waits for it; any thread sets it."""

    __slots__ = ("_event", "_is_set", "_scheduler", "waiting")

    def __init__(self) -> None:
        self._is_set = False
        self._scheduler = _this.scheduler
        self._event = threading.Event() if self._scheduler is None else None
        self.waiting: greenlet | None = None

    def wait(self, seconds: float) -> bool:
        """Wait for the signal for at most *seconds*; return whether it is set."""
        if self._event is not None:
            return self._event.wait(seconds)
        if not self._is_set and self._scheduler is not None:
            self.waiting = getcurrent()
            self._scheduler.wait(seconds)
            self.waiting = None
        return self._is_set

    def set(self) -> None:
        """Resume the greenlet or thread that waits."""
        self._is_set = True
        if self._event is not None:
            self._event.set()
        elif self._scheduler is not None:
            self._scheduler.notice(self)


def wait_for(descriptor: int, events: int, seconds: float) -> bool:
    """Wait for *events* of a descriptor; return whether there were any within *seconds*."""
    if _this.scheduler is not None and seconds > 0:
        return _this.scheduler.wait_for(descriptor, events, seconds)
    poll = select.poll()
    poll.register(descriptor, events)
    return bool(poll.poll(max(0.0, seconds) * 1000))


def has_scheduler() -> bool:
    """Whether this is the thread of a scheduler."""
    return _this.scheduler is not None


def end_turn() -> None:
    """Let all that is ready now start or continue, and then this greenlet."""
    if _this.scheduler is not None:
        _this.scheduler.end_turn()


def result(future: Future[_Result], seconds: float | None = None) -> _Result:
    """Return a future's result.  Raises what the future does, and TimeoutError after *seconds*."""
    if _this.scheduler is None:
        return future.result(seconds)
    signal = Signal()
    future.add_done_callback(lambda _: signal.set())
    signal.wait(inf if seconds is None else seconds)
    return future.result(0)


def call_in_thread(call: Callable[[], _Result]) -> _Result:
    """Return what *call* returns; in a worker, it runs in a thread of its own, because it may block."""
    if _this.scheduler is None:
        return call()
    try:
        future = start_thread(call)
    except RuntimeError:  # no more threads: to block is better than to fail
        return call()
    return result(future)


def start_thread(call: Callable[[], _Result]) -> Future[_Result]:
    """Return a future of *call*, which runs in a thread of its own.  Raises RuntimeError."""
    future: Future[_Result] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as ex:  # noqa: BLE001 - it is raised where the result is read
            future.set_exception(ex)

    threading.Thread(target=run, daemon=True).start()
    return future


def repeat(work: Callable[[], None], seconds: float, name: str) -> None:
    """Call *work* every *seconds* in a thread of its own, and once more when the process ends.

    Call this after a fork: a fork does not copy threads.
    """

    def run() -> None:
        while True:
            time.sleep(seconds)
            work()

    threading.Thread(target=run, name=name, daemon=True).start()
    atexit.register(work)
