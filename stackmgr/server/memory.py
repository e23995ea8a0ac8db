"""A bound on the memory of responses that are being built or wait for their clients to read them.

A page of 100 stacks whose names fill their requests has 26 MB. A client that asks for twelve of them and
reads none must not take a worker's memory, so a large page waits for room before it is built.
"""

import ctypes
import gc
from threading import Lock
from time import monotonic

from stackmgr.scheduler import sleep
from stackmgr.server.connection import WRITE_DEADLINE, ClientConnection
from stackmgr.server.connections import Connections

LIMIT = 134_217_728  # bytes in one process: five of the largest pages
LARGE = 1_048_576  # bytes of responses whose end is worth a collection
ROOM_SECONDS = 1.0  # a page waits so long for other clients to read; then those that read least are closed

_M_MMAP_THRESHOLD = -3  # of malloc.h
_MMAP_THRESHOLD = 131_072


def return_large_blocks() -> None:
    """Make glibc return blocks of 128 KiB and more to the system as soon as they are freed.

    By default it raises this threshold to the largest block freed so far and keeps smaller ones: after twelve
    unread pages a worker kept 50 MB in each of its threads.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:
        mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD)


class ResponseMemory:
    """Counts the bytes of a worker's responses. Safe for threads."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._reserving = Lock()
        self._used_before = 0

    def wait_for_room(self, conn: ClientConnection, size: int) -> None:
        """Block until a response of *size* bytes has room, and reserve it until the response is queued."""
        end = monotonic() + ROOM_SECONDS
        while not self._reserve(conn, size):
            sleep(0.02)
            if monotonic() > end:
                self._close_stalled(self._used() + size - LIMIT)

    def enforce(self) -> None:
        """Close connections beyond the limit, and return the memory of large responses that have ended.

        A reference cycle can keep such a response until a collection, which an idle worker would not run.
        """
        used = self._used()
        self._close_stalled(used - LIMIT)
        if used < self._used_before - LARGE:
            gc.collect()
        self._used_before = used

    def _used(self) -> int:
        return sum(max(len(conn.outbox), conn.reserved) for conn in list(self._connections.open))

    def _reserve(self, conn: ClientConnection, size: int) -> bool:
        with self._reserving:
            used = self._used()
            if used and used + size > LIMIT:
                return False
            conn.reserved = size
            return True

    def _close_stalled(self, excess: int) -> None:
        """Close connections until *excess* bytes are free, first those that read least, then the oldest."""
        if excess <= 0:
            return
        now = monotonic()

        def order(conn: ClientConnection) -> tuple[bool, float, float]:
            seconds = now - (conn.deadline - WRITE_DEADLINE)
            read = conn.unread - conn.count_unread()
            return seconds < ROOM_SECONDS, read / max(seconds, ROOM_SECONDS), conn.deadline

        def is_writing(conn: ClientConnection) -> bool:
            return conn.phase == "writing"

        for conn in sorted(filter(is_writing, list(self._connections.parked.values())), key=order):
            if excess > 0 and self._connections.claim(conn, is_writing):
                excess -= len(conn.outbox)
                self._connections.close(conn)
