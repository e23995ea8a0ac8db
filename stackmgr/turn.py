"""Whose turn it is: of the threads of a worker one computes, until it has to wait for longer than a moment.

CPython runs one thread at a time. Threads that all want to run hand its lock to and fro at every system call,
each time at the price of another call or two and a switch: a seventh of what a worker can do. So a thread
takes its turn before it looks for work, and leaves it to the next before it waits for what may take long: a
commit, a lock, a verifier elsewhere, a client. The microseconds of a database near by are not worth it.

Who waits without having left loses the turn soon after: the watch of the worker revokes it. A thread that is
not one of a worker's never takes a turn, and `leave` does nothing for it.
"""

from threading import Lock, get_ident
from time import monotonic

_turn = Lock()
# The thread whose turn it is, and since when. Who pops the entry, which is atomic, releases the lock.
_since: dict[int, float] = {}


def take() -> None:
    """Wait until it is this thread's turn, or go on with it."""
    thread = get_ident()
    if _since.pop(thread, None) is None:
        _turn.acquire()
    _since[thread] = monotonic()


def leave() -> None:
    """Let the next thread go on, if it is this one's turn."""
    if _since.pop(get_ident(), None) is not None:
        _turn.release()


def revoke(seconds: float) -> None:
    """Let the next thread go on if nothing has been heard of this one's turn for so long."""
    for thread, since in list(_since.items()):
        if monotonic() - since > seconds and _since.pop(thread, None) is not None:
            _turn.release()
