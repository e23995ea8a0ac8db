"""The scheduler of a worker: its main thread serves many requests at once, each in a greenlet.

A request waits only through `wait_for`, `Signal`, or the functions of `threads`.  Any other
blocking call stops the worker.  In a thread without a scheduler, as in commands, they block.
DECISIONS.md says why.  The invariants:

- A greenlet runs until it waits.  Code between two waits is atomic for the other requests of the
  worker, though not for its other threads.  No lock is held during a wait.
- A greenlet waits for one thing at a time, and no two for the same descriptor.
- Any thread may call `Signal.set` and `Scheduler.wake`; the rest is for its own thread.
"""

import os
import select
import threading
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from heapq import heapify, heappop, heappush
from time import monotonic
from typing import TypeAlias

from greenlet import getcurrent, greenlet

READABLE = select.EPOLLIN
WRITABLE = select.EPOLLOUT

_MAX_EVENTS = 64  # handled between two looks at the deadlines
# Of a turn, for those whose wait has ended, and once more for `ending_turn`: more wait for the next turn.
_RESUME_SECONDS = 0.002
_MAX_IDLE = 128  # greenlets that are kept: to make one costs ten times as much as to start a call

# A waiting greenlet, or a call that starts one.  Both get whether the event has occurred.
Waiter: TypeAlias = "greenlet | Callable[[bool], None]"
Lane: TypeAlias = deque[Waiter]  # those that are ready, until their turn comes


class Scheduler:
    """Runs calls in greenlets, in the thread that calls `run`."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._waiters: dict[int, tuple[Waiter, Lane | None]] = {}  # by descriptor
        self._watched: dict[int, int] = {}  # events, by descriptor that is waited for in lanes
        self.hung_up: set[int] = set()  # of these, reset while nobody waited
        self._deadlines: dict[Waiter, float] = {}  # of all that waits
        self._heap: list[tuple[float, int, Waiter]] = []  # the same, and some of waits that have ended
        self._signals: deque[Signal] = deque()  # that have been set
        self._ready: Lane = deque()  # those whose event has come, and that wait in no other lane
        self.ending_turn: Lane = deque()  # those that continue at the end of this turn
        self._idle: list[greenlet] = []
        self._wake_up = os.eventfd(0)
        self._main = getcurrent()
        self._thread = 0
        self._epoll.register(self._wake_up, READABLE)

    def run(self, turn: Callable[[], bool], idle_seconds: Callable[[], float]) -> None:
        """Take turns while *turn* returns True, with waits of at most *idle_seconds* for events."""
        self._main, self._thread = getcurrent(), threading.get_ident()
        _this.scheduler = self
        try:
            while turn():
                end = monotonic() + _RESUME_SECONDS
                for _ in range(len(self.ending_turn)):
                    self.resume(self.ending_turn.popleft())
                    if monotonic() > end:
                        break
                self._handle_ready(idle_seconds())
        finally:
            _this.scheduler = None

    def start(self, call: Callable[[], None]) -> None:
        """Run *call*, which must not raise, in a greenlet until it waits."""
        if not self._idle:
            greenlet(self._run_calls, self._main).switch()
        idle = self._idle.pop()
        idle.seconds = 0.0  # for which it has run; while it runs, less the time at which it began to
        self._switch(idle, call)

    def resume(self, waiter: Waiter, *, is_ready: bool = True) -> None:
        """Continue what has waited, until it waits again.  Only the main greenlet may call this."""
        self._deadlines.pop(waiter, None)
        if isinstance(waiter, greenlet):
            self._switch(waiter, is_ready)
        else:
            self.start(partial(waiter, is_ready))

    def _switch(self, target: greenlet, value: object) -> None:
        target.seconds -= monotonic()
        target.switch(value)
        target.seconds += monotonic()

    def seconds_run(self) -> float:
        """Return for how many seconds the present call has run, without its waits."""
        return float(getcurrent().seconds + monotonic())

    def forget(self, descriptor: int) -> None:
        """End a wait for a descriptor, which is closed or watched anew."""
        self._watched.pop(descriptor, None)
        self.hung_up.discard(descriptor)
        waiter, _ = self._waiters.pop(descriptor, (None, None))
        self._deadlines.pop(waiter, None)
        if isinstance(waiter, greenlet):
            self.ending_turn.append(waiter)

    def wake(self) -> None:
        """Make the thread take a turn even without an event.  Any thread may call this."""
        os.eventfd_write(self._wake_up, 1)

    def _run_calls(self) -> None:
        while len(self._idle) < _MAX_IDLE:
            self._idle.append(getcurrent())
            self._main.switch()()  # without a name: nothing of a request outlives it

    def _handle_ready(self, seconds: float) -> None:
        """Wait for at most *seconds*; resume the greenlets that need not wait any longer."""
        if self._ready or self._signals or self.ending_turn:
            seconds = 0.0
        elif self._heap:
            seconds = max(0.0, min(seconds, self._heap[0][0] - monotonic()))
        for descriptor, events in self._epoll.poll(seconds, _MAX_EVENTS):
            if descriptor == self._wake_up:
                os.eventfd_read(descriptor)
            elif descriptor in self._waiters:
                waiter, lane = self._waiters.pop(descriptor)
                self._deadlines.pop(waiter, None)  # an event that has come precedes a deadline
                (self._ready if lane is None else lane).append(waiter)
            elif descriptor in self._watched:
                self._note_unawaited(descriptor, events)
        end = monotonic() + _RESUME_SECONDS
        for due in self._take_ready(), self._take_expired():  # at least one of each
            for waiter, is_ready in due:
                self.resume(waiter, is_ready=is_ready)
                if monotonic() > end:
                    break

    def _take_ready(self) -> Iterator[tuple[Waiter, bool]]:
        """Remove and yield those whose event or signal has come."""
        while self._ready:
            yield self._ready.popleft(), True
        while self._signals:
            if (waiter := self._signals.popleft().waiter) is not None:
                yield waiter, True

    def _take_expired(self) -> Iterator[tuple[Waiter, bool]]:
        """Remove and yield those that have waited for too long."""
        now = monotonic()
        while self._heap and self._heap[0][0] <= now:
            deadline, _, waiter = heappop(self._heap)
            if self._deadlines.get(waiter) == deadline:
                yield waiter, False

    def _note_unawaited(self, descriptor: int, events: int) -> None:
        """Stop events without a waiter from waking the thread again or hiding others."""
        self._watched[descriptor] = 0
        if events & (select.EPOLLHUP | select.EPOLLERR):
            self.hung_up.add(descriptor)
            self._epoll.unregister(descriptor)
        else:
            self._epoll.modify(descriptor, select.EPOLLONESHOT)  # which still reports these two

    def _set_deadline(self, waiter: Waiter, seconds: float) -> None:
        self._deadlines[waiter] = deadline = monotonic() + seconds
        heappush(self._heap, (deadline, id(waiter), waiter))
        if len(self._heap) > 2 * len(self._deadlines) + 64:
            self._heap = [(deadline, id(each), each) for each, deadline in self._deadlines.items()]
            heapify(self._heap)

    def hasten(self, waiter: Waiter, seconds: float) -> None:
        """Shorten the wait of *waiter* to at most *seconds*."""
        if self._deadlines.get(waiter, 0.0) > monotonic() + seconds:
            self._set_deadline(waiter, seconds)

    def wait(self, seconds: float) -> bool:
        """Let other greenlets run; return whether this one was resumed within *seconds*."""
        self._set_deadline(getcurrent(), seconds)
        return bool(self._main.switch())

    def wait_for(self, descriptor: int, events: int, seconds: float, lane: Lane | None = None) -> bool:
        """Return whether *events* came within *seconds*; if so, wait in *lane* for `resume`."""
        self.park(getcurrent(), descriptor, events, seconds, lane)
        if self._main.switch():
            return True
        self.end_wait(descriptor)
        return False

    def end_wait(self, descriptor: int) -> None:
        """Let a late event resume nobody after a deadline.  The descriptor stays watched."""
        self._waiters.pop(descriptor, None)

    def park(self, waiter: Waiter, descriptor: int, events: int, seconds: float, lane: Lane | None) -> None:
        """Let *waiter* wait as in `wait_for`."""
        if lane is None:
            events |= select.EPOLLONESHOT
        if self._watched.get(descriptor) != events:
            try:
                self._epoll.modify(descriptor, events)
            except FileNotFoundError:
                self._epoll.register(descriptor, events)
            if lane is not None:
                self._watched[descriptor] = events
        self._waiters[descriptor] = waiter, lane
        self._set_deadline(waiter, seconds)

    def pause(self, lane: Lane | None = None) -> None:
        """Let others run until `resume` is called for this greenlet, as for those in *lane*."""
        if lane is not None:
            lane.append(getcurrent())
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

    __slots__ = ("_event", "_is_set", "_scheduler", "waiter")

    def __init__(self) -> None:
        self._is_set = False
        self._scheduler = _this.scheduler
        self._event = threading.Event() if self._scheduler is None else None
        self.waiter: greenlet | None = None

    def wait(self, seconds: float) -> bool:
        """Wait for the signal for at most *seconds*; return whether it is set."""
        if self._event is not None:
            return self._event.wait(seconds)
        if not self._is_set and self._scheduler is not None:
            self.waiter = getcurrent()
            self._scheduler.wait(seconds)
            self.waiter = None
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
        _this.scheduler.pause(_this.scheduler.ending_turn)
