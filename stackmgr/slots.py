"""Which threads of a worker take up requests: those that have a seat.

The threads of a process compute one at a time in any case, and where two want to, the interpreter's lock goes
to and fro between them at every system call. So while requests only read there is one seat: its thread takes
up one request after the other, and keeps it while a PostgreSQL near by looks something up. While some write
there are three, for a commit leaves much time for other requests. A thread that waits for longer (for a lock,
a distant server, another service, a client) gives its seat up, and another goes on meanwhile; it ends its
request without a seat, and then waits for one like the others.
"""

import threading
from queue import SimpleQueue
from time import monotonic

# While requests write, and for so many seconds afterwards, there are so many seats more.
_WRITES_END = 0.1
_MORE = 2


class _Thread(threading.local):
    seats: "RunSlots | None" = None
    is_seated = False


_this = _Thread()


class RunSlots:
    """The seats of one worker."""

    def __init__(self) -> None:
        self._free: SimpleQueue[None] = SimpleQueue()
        self._free.put(None)
        self._counting = threading.Lock()
        self._more = 0
        self._more_until = 0.0  # of the monotonic clock

    def take(self) -> None:
        """Return when this thread has a seat; at once if it may keep the one that it has."""
        if self._more and _this.is_seated and monotonic() > self._more_until:
            self._remove_one()
        if not _this.is_seated:
            self._free.get()
            _this.seats, _this.is_seated = self, True

    def give_up(self) -> None:
        """Let another thread have this thread's seat, if it has one."""
        if _this.is_seated:
            _this.is_seated = False
            self._free.put(None)

    def be_more(self) -> None:
        """Have more seats for a while."""
        self._more_until = monotonic() + _WRITES_END
        if self._more < _MORE:
            with self._counting:
                while self._more < _MORE:
                    self._more += 1
                    self._free.put(None)

    def _remove_one(self) -> None:
        with self._counting:
            if self._more:
                self._more -= 1
                _this.is_seated = False


def give_up() -> None:
    """Let another thread take up requests: this one may have to wait for long."""
    if _this.seats is not None:
        _this.seats.give_up()


def before_write() -> None:
    """Let more threads take up requests for a while: they write."""
    if _this.seats is not None:
        _this.seats.be_more()
