"""Which thread of a worker takes up requests: the one that has the seat.

The threads of a process compute one at a time in any case, and where two want to, the interpreter's lock goes
to and fro between them at every system call. So one thread takes up one request after the other, and keeps
the seat while a PostgreSQL near by looks something up. A thread that may wait for longer (for a commit, for
a distant server, for another service, for a client) gives the seat up first, and another goes on meanwhile;
it ends its request without the seat, and then waits for it like the others.
"""

import threading
from queue import SimpleQueue


class _Thread(threading.local):
    seat: "Seat | None" = None


_this = _Thread()


class Seat:
    """The one seat of a worker."""

    def __init__(self) -> None:
        self._free: SimpleQueue[None] = SimpleQueue()
        self._free.put(None)

    def take(self) -> None:
        """Return when this thread has the seat; at once if it has it already."""
        if _this.seat is None:
            self._free.get()
            _this.seat = self

    def free(self) -> None:
        """Let another thread have it."""
        self._free.put(None)


def give_up() -> None:
    """Let another thread take up requests, if this is the one that does: it may have to wait."""
    seat, _this.seat = _this.seat, None
    if seat is not None:
        seat.free()
