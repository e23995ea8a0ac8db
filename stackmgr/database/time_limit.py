"""A time limit for a sequence of operations, for commands and checks; never for requests."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the body once *seconds* have passed.  For the main thread of a process.

    The time-outs of libpq and PostgreSQL bound one attempt to connect or one statement each; a server that is
    frozen in between, or a list of hosts, is bounded by none of them.
    """

    def stop(signum: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"timed out after {seconds:g} s")

    previous = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
