"""Standard error, written so that no request fails or waits because of a log line.

It can be closed, on a full disk (ENOSPC), a pipe without a reader (EPIPE), or stalled: then a write
blocks without limit.  So a thread writes the lines, from a bounded queue.  Lines that cannot be
written, or find the queue full, are dropped and counted; the count is logged later.
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

# How long the thread lets lines gather: each of its system calls passes the interpreter lock on,
# which costs the requests more than the write itself.
_GATHER_SECONDS = 0.02
# An idle process keeps no thread: gunicorn's master forks, and reloads load this module twice.
_IDLE_GATHERS = 250
_EXIT_SECONDS = 0.5
_FILE_PIECE_BYTES = 65_536

_STDERR = 2


def stderr() -> int:
    """Return the descriptor of standard error, or -1 if the process was started without one.

    Then the number is given to /dev/null: the next socket would get it, and the log with it.
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


def _piece_bytes(fd: int) -> int:
    """Return how much is written at once: to a pipe, what lines of other processes cannot split."""
    try:
        is_file = stat.S_ISREG(os.fstat(fd).st_mode)
    except OSError:
        is_file = False
    return _FILE_PIECE_BYTES if is_file else select.PIPE_BUF


def _weakly(method: Callable[[], None]) -> Callable[[], None]:
    """Return a function that calls a *method* unless its object is gone."""
    reference = weakref.WeakMethod(method)

    def call() -> None:
        if (found := reference()) is not None:
            found()

    return call


class LineWriter:
    """Writes complete lines to a file descriptor, in order; safe for threads, signals and forks.

    *report* returns the line that says how many lines were dropped.
    """

    def __init__(self, fd: int, report: Callable[[int], bytes]) -> None:
        self._fd = fd
        self._report = report
        self._start_anew()
        # Neither can be undone: a writer of replaced modules must not stay for their sake.
        os.register_at_fork(after_in_child=_weakly(self._start_anew))
        atexit.register(_weakly(self.flush))

    def _start_anew(self) -> None:
        """Reset after a fork, which copies no thread: drop the parent's lines."""
        self._lock = threading.RLock()
        self._pending: deque[bytes] = deque()
        self._pending_bytes = 0  # of the lines that are being written, too
        self._thread: threading.Thread | None = None
        self._is_torn = False
        self._piece_bytes = _piece_bytes(self._fd)
        self._reported = 0
        self.dropped = 0

    def write(self, line: bytes) -> None:
        """Queue or drop *line*, which ends with a line feed.  Never blocks, never raises."""
        with self._lock:
            if self._pending_bytes + len(line) > MAX_PENDING_BYTES or not self._ensure_thread():
                self.dropped += 1
                return
            self._pending.append(line)
            self._pending_bytes += len(line)

    def drop(self, lines: int = 1) -> None:
        with self._lock:
            self.dropped += lines

    def flush(self) -> None:
        """Wait until every line is written, or dropped, but not long."""
        deadline = time.monotonic() + _EXIT_SECONDS
        while self._pending_bytes and time.monotonic() < deadline:
            time.sleep(0.001)

    def _ensure_thread(self) -> bool:
        if self._thread is None:
            try:
                self._thread = threading.Thread(target=self._run, name="log", daemon=True)
                self._thread.start()
            except RuntimeError:  # no more threads, or the interpreter is ending
                self._thread = None
        return self._thread is not None

    def _run(self) -> None:
        idle_gathers = 0
        while True:
            time.sleep(_GATHER_SECONDS)
            idle_gathers += 1
            while self._pending:
                idle_gathers = 0
                self._write_piece()
            with self._lock:
                if idle_gathers > _IDLE_GATHERS and not self._pending:
                    self._thread = None
                    return

    def _write_piece(self) -> None:
        """Write as many lines as fit into one piece, and after the last how many were dropped."""
        lines = [self._pending.popleft()]
        size = len(lines[0])
        while self._pending and size + len(self._pending[0]) <= self._piece_bytes:
            lines.append(self._pending.popleft())
            size += len(lines[-1])
        if not self._write_all(b"".join(lines)):
            self.drop(len(lines))
        elif self.dropped > self._reported and not self._pending:
            dropped = self.dropped
            if self._write_all(self._report(dropped - self._reported)):
                self._reported = dropped
        with self._lock:
            self._pending_bytes -= size

    def _write_all(self, text: bytes) -> bool:
        """Write *text*, however long that takes; return whether it was written."""
        # A full disk may have taken the beginning of a line.
        rest = b"\n" + text if self._is_torn else text
        try:
            while rest:
                try:
                    written = os.write(self._fd, rest)
                except BlockingIOError:  # another process with the same descriptor has set O_NONBLOCK
                    time.sleep(_GATHER_SECONDS)
                    continue
                self._is_torn = written < len(rest)
                rest = rest[written:]
        except OSError:
            return False
        return True
