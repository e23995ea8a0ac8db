"""The progress of a long command on standard error, with an estimate of the remaining time.

On a terminal one line is kept up to date; elsewhere a line is printed now and then.
"""

import signal
import sys
import time
from typing import Self

from stackmgr.operate.output import print_note

_TERMINAL_SECONDS = 0.5
_LINE_SECONDS = 30.0
_WIDTH = 110


class Progress:
    """How many of so many *units* are done.

    A context, in which Ctrl-C raises KeyboardInterrupt; its end removes the line from a terminal.
    """

    def __init__(self, units: str) -> None:
        self._units = units
        self._is_terminal = sys.stderr is not None and sys.stderr.isatty()
        self._interval = _TERMINAL_SECONDS if self._is_terminal else _LINE_SECONDS
        self._next = 0.0 if self._is_terminal else time.monotonic() + self._interval
        self._first: tuple[float, int] | None = None

    def __enter__(self) -> Self:
        self._handler = signal.signal(signal.SIGINT, signal.default_int_handler)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._handler)
        self.clear()

    def report(self, done: int, total: int, remark: str = "") -> None:
        """Print how much is done, and *remark*, if it is time to.

        A *total* below *done* is not known.
        """
        now = time.monotonic()
        if self._first is None and done:
            self._first = now, done
        if now < self._next:
            return
        self._next = now + self._interval
        counts = f"{done:,} of about {total:,} {self._units}" if total >= done else f"{done:,} {self._units}"
        text = ", ".join(filter(None, (counts if done else "", self._left(now, done, total), remark)))
        if self._is_terminal:
            print(f"\r{text:{_WIDTH}}", end="", file=sys.stderr, flush=True)
        else:
            print_note(text)

    def _left(self, now: float, done: int, total: int) -> str:
        """Return the remaining time at the rate since the first report; nothing at that one."""
        since, at_first = self._first or (now, done)
        if done == at_first or total < done:
            return ""
        return f"about {_duration((now - since) * (total - done) / (done - at_first))} left"

    def clear(self) -> None:
        """Remove the line from a terminal, where another line is printed or the command ends."""
        if self._is_terminal:
            print(f"\r{'':{_WIDTH}}\r", end="", file=sys.stderr, flush=True)


def _duration(seconds: float) -> str:
    """Return a time as `12 s`, `3 min` or `2 h 05 min`."""
    minutes = round(seconds / 60)
    if minutes < 2:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"
