"""The scheduler of a worker: one thread serves many requests at once, each in a greenlet.

A request that has to wait switches to the scheduler, which goes on with another.  DECISIONS.md says why.

Whatever waits during a request does so by `wait_for`, `Signal`, `sleep`, `result` or `call_in_thread`; what
blocks in any other way stops the whole worker.  In a thread without a scheduler, as in commands, they block.
What computes for long calls `give_way` from time to time.  The invariants:

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
_DEFER_SECONDS = 0.001
_TURN_SECONDS = 0.001

_Result = TypeVar("_Result")


class Scheduler:
    """Runs *number* greenlets in the thread that calls `run`.

    Each takes one event after the other from *events* and calls *handle* with its descriptor.  While all are
    busy, or *room* returns 0, events stay there.  *handle* must not raise.
    """

    def __init__(
        self,
        events: select.epoll,
        number: int,
        handle: Callable[[int], None],
        room: Callable[[], int] | None = None,
    ) -> None:
        self._events = events
        self._number = number
        self._handle = handle
        self._room = room
        self.turns = 0  # grows as long as the thread gets on
        self._idle: list[greenlet] = []
        self._epoll = select.epoll()  # of `events`, and of what greenlets wait for
        self._waiting: dict[int, greenlet] = {}  # by descriptor
        self._deadlines: dict[greenlet, float] = {}  # of every greenlet that waits
        self._next_deadline = inf  # or earlier: a wait that has ended does not move it
        self._signals: deque[Signal] = deque()  # that have been set
        self._deferred: list[Callable[[], None]] = []
        self._ending_turn: deque[greenlet] = deque()
        self._giving_way: deque[greenlet] = deque()
        self._urgent: dict[int, tuple[select.epoll, Callable[[int], None]]] = {}  # by descriptor
        self._wake_up = os.eventfd(0)
        self._main = getcurrent()
        self._thread = 0

    def run(self) -> None:
        """Handle events; this never returns."""
        self._main, self._thread = getcurrent(), threading.get_ident()
        _this.scheduler = self
        for _ in range(self._number):
            greenlet(self._handle_events).switch()
        self._epoll.register(self._wake_up, READABLE)
        self._epoll.register(self._events.fileno(), READABLE | select.EPOLLONESHOT)
        has_events = False
        while True:
            self.turns += 1
            has_events = self._handle_ready(has_events and self._wanted() > 0) or has_events
            if has_events and (wanted := self._wanted()):
                has_events = self._start(wanted)
            while self._ending_turn:
                self._ending_turn.popleft().switch(None)
            if self._giving_way:
                self._giving_way.popleft().switch(None)

    def add_urgent(self, events: select.epoll, handle: Callable[[int], None]) -> None:
        """Handle each event of *events* at once, in a greenlet of its own.  *handle* must not raise."""
        self._urgent[events.fileno()] = events, handle
        self._epoll.register(events.fileno(), READABLE)

    def wake(self) -> None:
        """Make the thread take a turn even without an event.  Any thread may call this."""
        os.eventfd_write(self._wake_up, 1)

    def defer(self, call: Callable[[], None]) -> None:
        """Make *call* once what is ready now has had its turn, after a millisecond at the latest."""
        self._deferred.append(call)

    def _handle_events(self) -> None:
        while True:
            self._idle.append(getcurrent())
            self._handle(self._main.switch())

    def _wanted(self) -> int:
        """Return how many events may be handled now."""
        return min(len(self._idle), self._room()) if self._room else len(self._idle)

    def _start(self, wanted: int) -> bool:
        """Handle up to *wanted* events, each in an idle greenlet; return whether there may be more."""
        found = self._events.poll(0, wanted)
        for descriptor, _ in found:
            self._idle.pop().switch(descriptor)
        if len(found) == wanted:
            return True
        self._epoll.modify(self._events.fileno(), READABLE | select.EPOLLONESHOT)
        return False

    def _start_urgent(self, events: select.epoll, handle: Callable[[int], None]) -> None:
        for descriptor, _ in events.poll(0, _MAX_EVENTS):
            greenlet(handle).switch(descriptor)

    def _handle_ready(self, is_busy: bool) -> bool:
        """Resume the greenlets that need not wait any longer; return whether there are new events."""
        has_events = False
        for descriptor, _ in self._epoll.poll(self._idle_seconds(is_busy), _MAX_EVENTS):
            waiting = self._waiting.pop(descriptor, None)
            if waiting is not None:
                self._resume(waiting, is_ready=True)
            elif descriptor == self._wake_up:
                os.eventfd_read(descriptor)
            elif descriptor == self._events.fileno():
                has_events = True
            elif descriptor in self._urgent:
                self._start_urgent(*self._urgent[descriptor])
        while self._signals:
            waiting = self._signals.popleft().waiting
            if waiting is not None:
                self._resume(waiting, is_ready=True)
        while self._deferred:
            self._deferred.pop()()
        if monotonic() >= self._next_deadline:
            self._expire()
        return has_events

    def _idle_seconds(self, is_busy: bool) -> float | None:
        """Return how long to wait for events: None is without limit."""
        if is_busy or self._signals or self._ending_turn or self._giving_way:
            return 0
        if self._deferred:
            return _DEFER_SECONDS
        return None if self._next_deadline == inf else max(0.0, self._next_deadline - monotonic())

    def _expire(self) -> None:
        """Resume the greenlets whose time has passed."""
        now = monotonic()
        for waiting, deadline in list(self._deadlines.items()):
            if deadline <= now and self._deadlines.get(waiting) == deadline:
                self._resume(waiting, is_ready=False)
        self._next_deadline = min(self._deadlines.values(), default=inf)

    def _resume(self, waiting: greenlet, *, is_ready: bool) -> None:
        del self._deadlines[waiting]
        waiting.switch(is_ready)

    def wait(self, seconds: float) -> bool:
        """Let other greenlets run; return whether this one was resumed within *seconds*."""
        deadline = monotonic() + seconds
        self._deadlines[getcurrent()] = deadline
        self._next_deadline = min(self._next_deadline, deadline)
        is_ready: bool = self._main.switch()
        return is_ready

    def wait_for(self, descriptor: int, events: int, seconds: float) -> bool:
        """See the function of this name."""
        try:
            self._epoll.modify(descriptor, events | select.EPOLLONESHOT)
        except FileNotFoundError:
            self._epoll.register(descriptor, events | select.EPOLLONESHOT)
        self._waiting[descriptor] = getcurrent()
        is_ready = self.wait(seconds)
        if not is_ready:
            del self._waiting[descriptor]  # a late event resumes no greenlet
        return is_ready

    def give_way(self) -> None:
        """See the function of this name: this greenlet continues once all runnable ones have had a turn."""
        self._giving_way.append(getcurrent())
        self._main.switch()

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


def sleep(seconds: float) -> None:
    """Wait for *seconds*."""
    Signal().wait(seconds)


def give_way(since: float) -> float:
    """Let other greenlets run if this one has computed for long since *since*; return its turn's start."""
    if _this.scheduler is None or monotonic() - since < _TURN_SECONDS:
        return since
    _this.scheduler.give_way()
    return monotonic()


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
    threading.Thread(target=_run, args=(future, call), daemon=True).start()
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


def _run(future: Future[_Result], call: Callable[[], _Result]) -> None:
    try:
        future.set_result(call())
    except BaseException as ex:  # noqa: BLE001 - it is raised where the result is read
        future.set_exception(ex)
