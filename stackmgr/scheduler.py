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
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from heapq import heappop, heappush
from itertools import islice
from math import ceil, inf
from time import monotonic
from typing import TypeAlias

from greenlet import getcurrent, greenlet

READABLE = select.EPOLLIN
WRITABLE = select.EPOLLOUT
HUNG_UP = select.EPOLLHUP | select.EPOLLERR

_MAX_EVENTS = 64  # handled between two looks at the deadlines
_MAX_ENDED = 64  # times without a wait that a look at the deadlines removes
# In a turn, for each kind of wait that has ended; the rest continues in the next turn.
_RESUME_SECONDS = 0.002
BUSY_SECONDS = 0.005  # after which the thread resumes who waits until it is idle
_TICKS = 64  # in a second: each wait in a lane ends at one, so that most share a time
_MAX_IDLE = 128  # greenlets that are kept: to make one costs ten times as much as to start a call

# A waiting greenlet, or a call that starts one.  Both get whether the event has occurred.
Waiter: TypeAlias = "greenlet | Callable[[bool], None]"
Lane: TypeAlias = deque["Waiter | Signal"]  # those that are ready, until their turn comes


def taken(lane: Lane) -> Iterator[Waiter]:
    """Remove and yield what is in *lane*; for a signal, what waits for it, if anything does."""
    while lane:
        first = lane.popleft()
        if waiter := first.waiter if isinstance(first, Signal) else first:
            yield waiter


class Scheduler:
    """Runs calls in greenlets, in the thread that calls `run`."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._waiters: dict[int, tuple[Waiter, Lane | None]] = {}  # by descriptor
        # By descriptor that is waited for in lanes: events, or HUNG_UP if it was reset while nobody waited.
        self.watched: dict[int, int] = {}
        self._deadlines: dict[Waiter, float] = {}  # of all that waits
        self._due: dict[float, dict[Waiter, int]] = {}  # by deadline, with the descriptor; some are empty
        self._times: list[float] = []  # a heap of these deadlines
        self._ready: Lane = deque()  # those whose event has come or signal is set, and that wait in no lane
        # Those that continue when nothing else is ready, or when their signal is set.
        self.until_idle: Lane = deque()
        self._until = 0.0  # or then
        self._idle: list[greenlet] = []
        self._wake_up = os.eventfd(0)
        self._main = getcurrent()
        self._thread = 0
        self._epoll.register(self._wake_up, READABLE)

    def run(
        self,
        turn: Callable[[], bool],
        idle_seconds: Callable[[], float],
        is_busy: Callable[[], bool] = lambda: False,
    ) -> None:
        """Take turns while *turn* returns True, with waits of at most *idle_seconds* for events.

        *is_busy* returns whether the next turn has something to do that should not wait.
        """
        self._main, self._thread = getcurrent(), threading.get_ident()
        _this.scheduler = self
        try:
            while turn():
                self._handle_ready(idle_seconds(), is_busy)
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
        if waiter in self._deadlines:
            self._end_deadline(waiter)
        if isinstance(waiter, greenlet):
            self._switch(waiter, is_ready)
        else:
            self.start(partial(waiter, is_ready))

    def resume_for(self, seconds: float, source: Iterable[Waiter], *, is_ready: bool = True) -> bool:
        """Resume what *source* yields for *seconds*, at least one; return whether time ran out."""
        end = monotonic() + seconds
        for waiter in source:
            self.resume(waiter, is_ready=is_ready)
            if monotonic() > end:
                return True
        return False

    def _switch(self, target: greenlet, value: object) -> None:
        target.seconds -= monotonic()
        target.switch(value)
        target.seconds += monotonic()

    def take_seconds(self) -> float:
        """Return for how many seconds the present call has run since this was last called."""
        present, now = getcurrent(), monotonic()
        seconds, present.seconds = float(present.seconds + now), -now
        return seconds

    def forget(self, descriptor: int) -> None:
        """End a wait for a descriptor, which is closed or watched anew."""
        self.watched.pop(descriptor, None)
        waiter, _ = self._waiters.pop(descriptor, (None, None))
        if waiter is not None:
            self._end_deadline(waiter)
        if isinstance(waiter, greenlet):
            self.until_idle.append(waiter)

    def wake(self) -> None:
        """Make the thread take a turn even without an event.  Any thread may call this."""
        os.eventfd_write(self._wake_up, 1)

    def _run_calls(self) -> None:
        while len(self._idle) < _MAX_IDLE:
            self._idle.append(getcurrent())
            # `switch` returns the next call.  No variable holds it: it would keep a request in memory.
            self._main.switch()()

    def _handle_ready(self, seconds: float, is_busy: Callable[[], bool]) -> None:
        seconds = 0.0 if self._ready else max(0.0, min(seconds, self._next_deadline() - monotonic()))
        found = self._epoll.poll(0.0 if self.until_idle else seconds, _MAX_EVENTS)
        self._note_events(found)
        if self._ready:
            self.resume_for(_RESUME_SECONDS, taken(self._ready))
        is_idle = not (self.until_idle and (self._ready or is_busy()))
        now = monotonic()
        if self._times and self._times[0] <= now:
            self.resume_for(_RESUME_SECONDS, self._take_expired(), is_ready=False)
        if is_idle or now > self._until or not self.until_idle:
            if number := len(self.until_idle):  # those that join it meanwhile wait for the next time
                self.resume_for(_RESUME_SECONDS, islice(taken(self.until_idle), number))
            self._until = now + BUSY_SECONDS

    def _note_events(self, found: list[tuple[int, int]]) -> None:
        for descriptor, events in found:
            if descriptor == self._wake_up:
                os.eventfd_read(descriptor)
            elif descriptor in self._waiters:
                waiter, lane = self._waiters.pop(descriptor)
                self._end_deadline(waiter)  # an event that has come precedes a deadline
                (self._ready if lane is None else lane).append(waiter)
            elif descriptor in self.watched:  # which must not wake the thread again, or hide others
                if events & HUNG_UP:
                    self._epoll.unregister(descriptor)
                else:
                    self._epoll.modify(descriptor, select.EPOLLONESHOT)  # which still reports HUNG_UP
                self.watched[descriptor] = events & HUNG_UP

    def _take_expired(self) -> Iterator[Waiter]:
        now = monotonic()
        while (deadline := self._next_deadline()) <= now and self._due[deadline]:
            waiter, descriptor = self._due[deadline].popitem()
            self._due[deadline][waiter] = descriptor
            self._end_deadline(waiter)
            self._waiters.pop(descriptor, None)  # a late event resumes nobody
            yield waiter

    def _next_deadline(self) -> float:
        """Return the first deadline, or an earlier one of waits that have ended."""
        for _ in range(_MAX_ENDED):
            if not self._times or self._due[self._times[0]]:
                break
            del self._due[heappop(self._times)]
        return self._times[0] if self._times else inf

    def _set_deadline(self, waiter: Waiter, deadline: float, descriptor: int = -1) -> None:
        if deadline not in self._due:
            self._due[deadline] = {}
            heappush(self._times, deadline)
        self._due[deadline][waiter] = descriptor
        self._deadlines[waiter] = deadline

    def _end_deadline(self, waiter: Waiter) -> None:
        del self._due[self._deadlines.pop(waiter)][waiter]

    def wait(self, seconds: float) -> bool:
        """Let other greenlets run; return whether this one was resumed within *seconds*."""
        self._set_deadline(getcurrent(), monotonic() + seconds)
        return bool(self._main.switch())

    def wait_for(self, descriptor: int, events: int, seconds: float, lane: Lane | None = None) -> bool:
        """Return whether *events* came within *seconds*; if so, wait in *lane* for `resume`."""
        self.park(getcurrent(), descriptor, events, seconds, lane)
        return bool(self._main.switch())

    def park(self, waiter: Waiter, descriptor: int, events: int, seconds: float, lane: Lane | None) -> None:
        events |= select.EPOLLONESHOT if lane is None else 0
        deadline = monotonic() + seconds
        if self.watched.get(descriptor) != events:
            try:
                self._epoll.modify(descriptor, events)
            except FileNotFoundError:
                self._epoll.register(descriptor, events)
            if lane is not None:
                self.watched[descriptor] = events
        self._waiters[descriptor] = waiter, lane
        self._set_deadline(waiter, deadline if lane is None else ceil(deadline * _TICKS) / _TICKS, descriptor)

    def pause(self, lane: Lane | None = None) -> None:
        """Let others run until `resume` is called for this greenlet, as for those in *lane*."""
        if lane is not None:
            lane.append(getcurrent())
        self._main.switch()

    def notice(self, signal: "Signal") -> None:
        """Resume the greenlet that waits for *signal*, soon.  Any thread may call this."""
        if threading.get_ident() != self._thread:
            self._ready.append(signal)
            self.wake()
        elif signal.waiter is not None:  # else nobody waits, and who does later finds it set
            self._ready.append(signal)


class _Thread(threading.local):
    scheduler: Scheduler | None = None


_this = _Thread()


class Signal:
    """An event that happens once.  The thread that creates it waits for it; any thread sets it."""

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

    def wait_until_idle(self) -> None:
        """Wait for the signal, or until the thread has nothing else to do, but at most 5 ms."""
        if not self._is_set and self._scheduler is not None:
            self.waiter = getcurrent()
            self._scheduler.until_idle.append(self)
            self._scheduler.pause()
            self.waiter = None

    def set(self) -> None:
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
    return _this.scheduler is not None
