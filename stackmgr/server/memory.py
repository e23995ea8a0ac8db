"""A bound on the memory of responses that are being built or wait for their clients to read them.

A page of 100 stacks whose names fill their requests has 26 MB. A client that requests twelve of them and
reads none must not take a worker's memory, so a large page waits for room before it is built.
"""

import ctypes
import gc
from threading import Lock
from time import monotonic

from stackmgr.capacity import Capacity
from stackmgr.limits import BODY_LIMIT_BYTES, MAX_PAGE_SIZE
from stackmgr.scheduler import sleep
from stackmgr.server import WRITING
from stackmgr.server.connection import WRITE_DEADLINE, ClientConnection
from stackmgr.server.connections import HttpConnections

MEMORY_LIMIT_BYTES = 5 * MAX_PAGE_SIZE * BODY_LIMIT_BYTES  # in one process: five of the largest pages
LARGE = 1_048_576  # bytes of responses whose end is worth a collection
MAX_WAITING = 2  # pages that wait for room at once, each with its rows in memory
ROOM_SECONDS = 1.0  # that a page waits for other clients to read; then those that read least are closed

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h
_TRIM_THRESHOLD = 16_777_216
_MMAP_THRESHOLD = 1_048_576

_libc = ctypes.CDLL(None)


def keep_small_blocks() -> None:
    """Make glibc reuse the memory of blocks below 1 MiB, and return 16 MiB and more of it to the system.

    A block that is mapped anew costs a page fault for each 4 KiB, more than to fill it.  By default glibc
    moves both thresholds to the largest block freed so far: after twelve unread pages a worker kept 50 MB.
    """
    if hasattr(_libc, "mallopt"):
        _libc.mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD)
        _libc.mallopt(_M_TRIM_THRESHOLD, _TRIM_THRESHOLD)


class ResponseMemory:
    """Counts the bytes of a worker's responses. Safe for threads."""

    def __init__(self, connections: HttpConnections) -> None:
        self._connections = connections
        self._reserving = Lock()
        self._used_before = 0
        self._waiting = 0

    def wait_for_room(self, capacity: Capacity, size: int) -> bool:
        """Wait until a response of *size* bytes has room, and reserve it until the response is queued.

        Return False at once if MAX_WAITING others wait: more of them would hold greenlets and memory.
        """
        if self._waiting == MAX_WAITING:
            return False
        end = monotonic() + ROOM_SECONDS
        self._waiting += 1
        try:
            while not self._reserve(capacity, size):
                sleep(0.02)
                if monotonic() > end:
                    self._close_stalled(self._used() + size - MEMORY_LIMIT_BYTES)
        finally:
            self._waiting -= 1
        return True

    def enforce(self) -> None:
        """Close connections beyond the limit, and return the memory of large responses that have ended.

        A reference cycle can keep such a response until a collection, which an idle worker would not run.
        """
        used = self._used()
        self._close_stalled(used - MEMORY_LIMIT_BYTES)
        if used < self._used_before - LARGE:
            gc.collect()
            if hasattr(_libc, "malloc_trim"):
                _libc.malloc_trim(0)
        self._used_before = used

    def _used(self) -> int:
        return sum(max(conn.outbox.size, conn.capacity.reserved) for conn in list(self._connections.open))

    def _reserve(self, capacity: Capacity, size: int) -> bool:
        with self._reserving:
            used = self._used()
            if used and used + size > MEMORY_LIMIT_BYTES:
                return False
            capacity.reserved = size
            return True

    def _close_stalled(self, excess: int) -> None:
        """Close connections until *excess* bytes are free, first those that read least, then the oldest."""
        if excess <= 0:
            return
        now = monotonic()

        def order(conn: ClientConnection) -> tuple[bool, float, float]:
            seconds = now - (conn.deadline - WRITE_DEADLINE)
            try:
                read = conn.unread - conn.count_unread()
            except OSError:  # another thread has just closed it
                read = 0
            return seconds < ROOM_SECONDS, read / max(seconds, ROOM_SECONDS), conn.deadline

        def is_writing(conn: ClientConnection) -> bool:
            return conn.phase is WRITING

        for conn in sorted(filter(is_writing, list(self._connections.parked.values())), key=order):
            if excess > 0 and self._connections.claim(conn, is_writing):
                excess -= conn.outbox.size
                self._connections.close(conn)
