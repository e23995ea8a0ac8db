"""Standard error, written so that no request fails or waits because of a log line.

Standard error can be closed, on a full disk (ENOSPC), a pipe without a reader (EPIPE), or a pipe whose reader
has stalled, where a write blocks without limit.  A non-blocking descriptor is no remedy: the flag belongs to
the open file, which other processes share.  So a line is written at once only where that cannot block: to a
file, or to a pipe or socket by a single write marked as non-blocking (pipes: since Linux 6.4).  Any other
line goes to a bounded queue, which a thread writes.  Lines that cannot be written, or find the queue full,
are dropped and counted; the count is logged once writing works again.

The thread alone would do, but costs a request 16 us: each of its system calls passes the interpreter lock on.
"""

import atexit
import os
import select
import stat
import sys
import threading
import time
from collections import deque
from collections.abc import Callable

MAX_PENDING_BYTES = 1_048_576

# How long the thread lets lines gather: one wake-up and one system call then serve many requests.
_GATHER_SECONDS = 0.005
# An idle process keeps no thread: gunicorn's master forks, and after a reload this module is there twice.
_IDLE_SECONDS = 5.0
_EXIT_SECONDS = 0.5

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


def _write_to_stream(fd: int, line: bytes) -> int:
    """Write *line*, or raise OSError: if there is no room for it now, or the kernel cannot tell."""
    return os.pwritev(fd, [line], -1, os.RWF_NOWAIT)


def _immediate_write(fd: int) -> Callable[[int, bytes], int] | None:
    """Return a function that writes without blocking to what *fd* is, or None: a terminal may be paused."""
    try:
        mode = os.fstat(fd).st_mode
    except OSError:
        return None
    if stat.S_ISREG(mode):
        return os.write
    return _write_to_stream if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) else None


class LineWriter:
    """Writes whole lines to a file descriptor, in order.  Safe for threads, signal handlers and a fork.

    *report* returns the line that says how many lines were dropped.
    """

    def __init__(self, fd: int, report: Callable[[int], bytes]) -> None:
        self._fd = fd
        self._report = report
        self._start_anew()
        os.register_at_fork(after_in_child=self._start_anew)
        atexit.register(self.flush)

    def _start_anew(self) -> None:
        """Begin without a thread, which a fork does not copy, and without the parent's lines."""
        self._lock = threading.RLock()
        self._wake = threading.Lock()
        self._wake.acquire()
        self._pending: deque[bytes] = deque()
        self._pending_bytes = 0
        self._is_idle = True
        self._thread: threading.Thread | None = None
        self._is_torn = False
        self._write_at_once = _immediate_write(self._fd)
        self._reported = 0
        self.dropped = 0

    def write(self, line: bytes) -> None:
        """Write, queue or drop *line*, which ends with a line feed.  Never blocks, never raises."""
        if self._is_idle and self.dropped == self._reported and self._has_written_at_once(line):
            return
        with self._lock:
            if self._pending_bytes + len(line) > MAX_PENDING_BYTES or not self._has_thread():
                self.dropped += 1
                return
            self._pending.append(line)
            self._pending_bytes += len(line)
            if self._is_idle:
                self._is_idle = False
                self._wake.release()

    def drop(self, lines: int = 1) -> None:
        """Count lines that are not written."""
        with self._lock:
            self.dropped += lines

    def flush(self, seconds: float = _EXIT_SECONDS) -> None:
        """Wait until every line is written, or dropped, but no longer than *seconds*."""
        deadline = time.monotonic() + seconds
        while not self._is_idle and time.monotonic() < deadline:
            time.sleep(0.001)

    def _has_written_at_once(self, line: bytes) -> bool:
        if self._write_at_once is None or len(line) > select.PIPE_BUF:
            return False
        try:
            written = self._write_at_once(self._fd, line)
        except OSError:
            return False  # the thread finds out why
        self._is_torn = 0 < written < len(line)
        return written == len(line)

    def _has_thread(self) -> bool:
        if self._thread is None:
            try:
                self._thread = threading.Thread(target=self._run, name="log", daemon=True)
                self._thread.start()
            except RuntimeError:  # no more threads, or the interpreter is ending
                self._thread = None
        return self._thread is not None

    def _run(self) -> None:
        while True:
            if self._wake.acquire(timeout=_IDLE_SECONDS):
                time.sleep(_GATHER_SECONDS)
                self._write_pending()
            elif self._may_end():
                return

    def _write_pending(self) -> None:
        while lines := self._next_lines():
            if not self._has_written(b"".join(lines)):
                self.drop(len(lines))
            elif self.dropped > self._reported and not self._pending:
                dropped = self.dropped
                if self._has_written(self._report(dropped - self._reported)):
                    self._reported = dropped

    def _may_end(self) -> bool:
        """Give the thread up, unless a line has just been queued for it."""
        with self._lock:
            if self._is_idle:
                self._thread = None
            return self._is_idle

    def _next_lines(self) -> list[bytes]:
        """Return as many lines as a pipe takes without mixing them with those of other processes."""
        with self._lock:
            lines: list[bytes] = []
            size = 0
            while self._pending and (not lines or size + len(self._pending[0]) <= select.PIPE_BUF):
                lines.append(self._pending.popleft())
                size += len(lines[-1])
            self._pending_bytes -= size
            self._is_idle = not lines
            return lines

    def _has_written(self, text: bytes) -> bool:
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
