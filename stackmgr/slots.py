"""Run slots: a thread of a worker computes for requests only while it holds one.

The threads of a process compute one at a time in any case, and where two want to, the interpreter lock
changes hands at every system call.  So there is one slot while requests only read.  Its thread handles one
request after the other, and keeps it while a near PostgreSQL responds.  While some requests write there are
three slots, because a commit leaves time for other requests.

Whoever may block for long does so `with blocking`, whoever writes calls `before_write`; a request needs no
more.  The invariants:

- A thread holds one slot or none, and only the thread itself acquires and releases it.
- A thread acquires a slot before it takes up a connection and keeps it for the next one.  It releases it for
  as long as it blocks, also when it waits for a connection that has something to do.
- No slot is lost: the loop of a thread releases the slot it holds however the loop ends.
- No deadlock: a thread that holds a slot waits for nothing but a statement's result, for 20 ms at most.
- A released slot goes first to a thread that has a request, in the order in which they resume; then to the
  thread without one that has waited least, whose memory is still in the caches: idle threads cost nothing.
"""

import threading
from collections import deque
from math import inf
from time import monotonic

# For so many seconds after a write there are so many slots more.
_WIDE_SECONDS = 0.1
_WIDE_SLOTS = 2

# The longest that the shortest of some statements takes to a local server and back, in seconds.
LOCAL_ROUND_TRIP = 0.00025
# How many statements that is; once the server is known to be near, so many more are needed to change that:
# with three busy threads, 32 statements in a row may each have waited for the interpreter lock.
_WINDOW = 32
_LONG_WINDOW = 512


class Distance:
    """Whether a server is near, judged by the shortest of many complete statements.

    A single wait proves nothing: it may end at once because the response came in two pieces, or because the
    thread was scheduled late.  No statement is shorter than the way to the server and back.  Until the first
    32 have been seen, the server counts as far.
    """

    __slots__ = ("_count", "_shortest", "is_near")

    def __init__(self) -> None:
        self.is_near = False
        self._shortest = inf
        self._count = 0

    def record(self, seconds: float) -> None:
        """Record how long a statement took, from sending it to its last result."""
        self._shortest = min(self._shortest, seconds)
        self._count += 1
        if self._count == (_LONG_WINDOW if self.is_near else _WINDOW):
            self.is_near = self._shortest < LOCAL_ROUND_TRIP
            self._shortest, self._count = inf, 0


class _Thread(threading.local):
    def __init__(self) -> None:
        self.slots: RunSlots | None = None
        self.holds_slot = False
        self.woken = threading.Lock()  # released by whoever hands its slot to this thread
        self.woken.acquire()


_this = _Thread()


class RunSlots:
    """The run slots of one worker."""

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._free = 1
        self._waiting: deque[threading.Lock] = deque()
        self._resuming: deque[threading.Lock] = deque()
        self._extra = 0
        self._extra_until = 0.0  # of the monotonic clock

    def acquire(self) -> None:
        """Return once this thread holds a slot: at once if it holds one that it may keep."""
        if self._extra and _this.holds_slot and monotonic() > self._extra_until:
            self._narrow()
        if _this.holds_slot:
            if not self._resuming:
                return
            self.release()
        self._acquire(self._waiting)
        _this.slots = self

    def resume(self) -> None:
        """Return once this thread, which released its slot to wait for something, holds one again."""
        if not _this.holds_slot:
            self._acquire(self._resuming)

    def _acquire(self, line: deque[threading.Lock]) -> None:
        with self._changing:
            is_free = self._free > 0
            if is_free:
                self._free -= 1
            else:
                line.append(_this.woken)
        if not is_free:
            _this.woken.acquire()
        _this.holds_slot = True

    def release(self) -> None:
        """Release this thread's slot, if it holds one."""
        if _this.holds_slot:
            _this.holds_slot = False
            self._add_free()

    def widen(self) -> None:
        """Add the slots that there are while requests write."""
        self._extra_until = monotonic() + _WIDE_SECONDS
        if self._extra < _WIDE_SLOTS:
            with self._changing:
                missing, self._extra = _WIDE_SLOTS - self._extra, _WIDE_SLOTS
            for _ in range(missing):
                self._add_free()

    def _add_free(self) -> None:
        with self._changing:
            if self._resuming:
                woken = self._resuming.popleft()
            elif self._waiting:
                woken = self._waiting.pop()
            else:
                self._free += 1
                return
        woken.release()

    def _narrow(self) -> None:
        """Remove one slot, this thread's: so one is left at the least."""
        with self._changing:
            if self._extra:
                self._extra -= 1
                _this.holds_slot = False


class _Blocking:
    """Releases this thread's run slot, if it holds one, and acquires one again at the end."""

    def __enter__(self) -> None:
        if _this.slots is not None:
            _this.slots.release()

    def __exit__(self, *_: object) -> None:
        if _this.slots is not None:
            _this.slots.resume()


# `with blocking:` surrounds what may take long and computes nothing.
blocking = _Blocking()


def before_write() -> None:
    """Let more threads run for a while: what follows waits for a commit."""
    if _this.slots is not None:
        _this.slots.widen()
