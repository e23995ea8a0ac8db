"""Standard error, written so that no request fails or waits because of a log line.

Standard error can be closed, on a full disk (ENOSPC) or a stalled one, a pipe without a reader (EPIPE), or a
pipe whose reader has stalled.  Where it has stalled, a write blocks without limit.  A non-blocking descriptor
is no remedy: files ignore the flag, and it belongs to the open file, which other processes share.  So a line
is written at once only to a pipe or a socket, by a single write marked as non-blocking (pipes: since Linux
6.4).  Any other line goes to a bounded queue, which a thread writes.  Lines that cannot be written, or find
the queue full, are dropped and counted; the count is logged once writing works again.
"""

import atexit
import os
import select
import stat
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable

MAX_PENDING_BYTES = 1_048_576

# How long the thread lets lines gather: each of its system calls passes the interpreter lock on, which costs
# the requests more than the write itself.
_GATHER_SECONDS = 0.02
# An idle process keeps no thread: gunicorn's master forks, and after a reload this module is there twice.
_IDLE_GATHERS = 250
_EXIT_SECONDS = 0.5
# The most that is written to a file in one piece; to a pipe it is what lines of other processes cannot split.
_PIECE_BYTES = 65_536

_STDERR = 2


def _stderr() -> int:
    """Return the descriptor of standard error, or -1 where the process was started without one.

    Then the number is given to /dev/null, or the next socket would get it, with all that is written there.
    """
    if sys.__stderr__ is not None:
        return _STDERR
    if sys.stderr is None:
        null = os.open(os.devnull, os.O_WRONLY)
        try:
            os.fstat(_STDERR)
        except OSError:
            os.dup2(null, _STDERR)
        sys.stderr = os.fdopen(null, "w")
    return -1


def _is_stream(fd: int) -> bool:
    """Whether *fd* is a pipe or a socket."""
    try:
        mode = os.fstat(fd).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def _weakly(method: Callable[[], None]) -> Callable[[], None]:
    """Return a function that calls a *method* unless its object is gone."""
    reference = weakref.WeakMethod(method)

    def call() -> None:
        if (found := reference()) is not None:
            found()

    return call


class LineWriter:
    """Writes complete lines to a file descriptor, in order.  Safe for threads, signal handlers and a fork.

    *report* returns the line that says how many lines were dropped.
    """

    def __init__(self, fd: int, report: Callable[[int], bytes]) -> None:
        self._fd = fd
        self._report = report
        self._start_anew()
        # Neither can be undone: a writer of modules that a reload has replaced must not stay for their sake.
        os.register_at_fork(after_in_child=_weakly(self._start_anew))
        atexit.register(_weakly(self.flush))

    def _start_anew(self) -> None:
        """Reset after a fork, which copies no thread: start without one and without the parent's lines."""
        self._lock = threading.RLock()
        self._pending: deque[bytes] = deque()
        self._pending_bytes = 0
        self._is_idle = True  # every line is written
        self._thread: threading.Thread | None = None
        self._is_torn = False
        self._is_stream = _is_stream(self._fd)
        self._reported = 0
        self.dropped = 0

    def write(self, line: bytes) -> None:
        """Write, queue or drop *line*, which ends with a line feed.  Never blocks, never raises."""
        if self._is_stream and self._is_idle and self.dropped == self._reported and self._write_at_once(line):
            return
        with self._lock:
            if self._pending_bytes + len(line) > MAX_PENDING_BYTES or not self._ensure_thread():
                self.dropped += 1
                return
            self._pending.append(line)
            self._pending_bytes += len(line)
            self._is_idle = False

    def drop(self, lines: int = 1) -> None:
        """Count lines that are not written."""
        with self._lock:
            self.dropped += lines

    def flush(self, seconds: float = _EXIT_SECONDS) -> None:
        """Wait until every line is written, or dropped, but no longer than *seconds*."""
        deadline = time.monotonic() + seconds
        while not self._is_idle and time.monotonic() < deadline:
            time.sleep(0.001)

    def _write_at_once(self, line: bytes) -> bool:
        """Write *line* to a stream if there is room for it now; return whether it was written."""
        if len(line) > select.PIPE_BUF:
            return False
        try:
            written = os.pwritev(self._fd, [line], -1, os.RWF_NOWAIT)
        except OSError:
            return False  # no room, or the kernel cannot say: the thread writes it
        self._is_torn = 0 < written < len(line)
        return written == len(line)

    def _ensure_thread(self) -> bool:
        """Start the thread unless it runs; return whether it does."""
        if self._thread is None:
            try:
                self._thread = threading.Thread(target=self._run, name="log", daemon=True)
                self._thread.start()
            except RuntimeError:  # no more threads, or the interpreter is ending
                self._thread = None
        return self._thread is not None

    def _run(self) -> None:
        idle_gathers = 0
        while idle_gathers < _IDLE_GATHERS or not self._end_thread():
            time.sleep(_GATHER_SECONDS)
            idle_gathers = 0 if self._write_pending() else idle_gathers + 1

    def _end_thread(self) -> bool:
        """End the thread, unless a line has just been queued for it."""
        with self._lock:
            if self._is_idle:
                self._thread = None
            return self._is_idle

    def _write_pending(self) -> bool:
        """Write what has gathered; return whether that was anything."""
        is_any = False
        while lines := self._next_lines():
            is_any = True
            if not self._write_all(b"".join(lines)):
                self.drop(len(lines))
            elif self.dropped > self._reported and not self._pending:
                dropped = self.dropped
                if self._write_all(self._report(dropped - self._reported)):
                    self._reported = dropped
        return is_any

    def _next_lines(self) -> list[bytes]:
        """Return as many lines as are written in one piece."""
        most = select.PIPE_BUF if self._is_stream else _PIECE_BYTES
        with self._lock:
            lines: list[bytes] = []
            size = 0
            while self._pending and (not lines or size + len(self._pending[0]) <= most):
                lines.append(self._pending.popleft())
                size += len(lines[-1])
            self._pending_bytes -= size
            self._is_idle = not lines
            return lines

    def _write_all(self, text: bytes) -> bool:
        """Write *text*, however long that takes; return whether it was written."""
        # A full disk may have taken the beginning of a line.
        rest = b"\n" + text if self._is_torn else text
        try:
            while rest:
                written = os.write(self._fd, rest)
                self._is_torn = written < len(rest)
                rest = rest[written:]
        except OSError:
            return False
        return True


def stderr_writer(report: Callable[[int], bytes]) -> LineWriter:
    """Return a writer for this process's standard error."""
    return LineWriter(_stderr(), report)
