"""The listening sockets of a worker: which of the waiting connections it accepts, and when."""

import socket
from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from typing import Any

from stackmgr.capacity import Capacity
from stackmgr.server.connection import ClientConnection
from stackmgr.server.connections import READ, HttpConnections

# A worker that has just accepted is awake and would accept the next ones too, all 32 of a client's, while the
# other workers are still waking up. So it serves what else it has, or waits a moment, before it accepts
# again.
ACCEPT_BACKOFF_BELOW = 32  # connections: beyond, new ones would wait long behind others' requests
ACCEPTS = 64  # at once, then


class Listeners:
    """Accepts connections, whose capacity *reserve* limits. Safe for threads.

    If descriptors are exhausted, one of *expendable*, by default of its own connections, is closed.
    """

    def __init__(
        self,
        bound: Any,
        connections: HttpConnections,
        limit: int,
        reserve: Callable[[Capacity, int], int] | None = None,
        expendable: HttpConnections | None = None,
    ) -> None:
        self._sockets: dict[int, socket.socket] = {each.fileno(): each.sock for each in bound}
        self._connections = connections
        self._limit = limit  # connections that are open at once
        self._reserve = reserve
        self._expendable = expendable or connections
        self._accepting = Lock()
        self._ready: set[int] = set()  # at the last tick

    def watch(self) -> None:
        """Wait for connections."""
        for fd in self._sockets:
            self._connections.epoll.register(fd, READ)

    def accept(self, fd: int) -> int | None:
        """Accept what waits. Return the listener if it took one and leaves the next to another process."""
        with self._accepting:
            listener = self._sockets.get(fd)
            if listener is None:  # closed meanwhile, or not a listener
                return None
            try:
                for _ in range(ACCEPTS):
                    self._accept_one(listener)
                    if len(self._connections.open) < ACCEPT_BACKOFF_BELOW:
                        return fd
            except (BlockingIOError, ConnectionAbortedError):
                pass
            except OSError:  # probably out of descriptors: an immediate retry would only use the processor
                self._connections.paused.append(fd)
                if self._expendable.close_longest_parked():
                    self._connections.resume_listeners()
                return None
            except BaseException:
                self._connections.paused.append(fd)
                raise
        self._connections.arm(fd, READ)
        return None

    def accept_for_busy_greenlets(self, ready: list[int]) -> None:
        """Accept at the listeners that are *ready* at this tick and were at the last one.

        A free greenlet, of this process or of another, takes a connection within a fraction of a tick.
        """
        for fd in ready:
            if fd not in self._sockets:
                continue
            if fd not in self._ready:
                self._connections.arm(fd, READ)
                continue
            while self.accept(fd) is not None:
                pass
        self._ready = set(ready)

    def close(self) -> None:
        """Take the connections that wait and close the listeners, or they would be reset at the end.

        Between the last `accept` and the `close` the kernel may still make a connection, and resets it if no
        other process holds the listener; under systemd's socket unit, and at a reload, one does.
        """
        with self._accepting:  # or the request thread might hold one that is not in `connections` yet
            while self._sockets:
                fd, listener = self._sockets.popitem()
                self._connections.epoll.unregister(fd)
                with suppress(OSError):
                    while True:
                        self._accept_one(listener)
                listener.close()

    def _accept_one(self, listener: socket.socket) -> None:
        """Accept one connection and watch it."""
        sock, peer = listener.accept()
        conn = ClientConnection(sock, peer, listener.getsockname(), Capacity(self._reserve))
        if len(self._connections.open) >= self._limit:
            self._connections.close_longest_parked()
        self._connections.add(conn)
