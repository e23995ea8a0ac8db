"""The listening sockets of a worker: which of the waiting connections it accepts, and when."""

import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from select import EPOLLONESHOT
from time import monotonic
from typing import Any

from stackmgr.scheduler import READABLE, Scheduler
from stackmgr.server.connection import ClientConnection
from stackmgr.server.connections import HttpConnections

LISTEN = READABLE | EPOLLONESHOT

# A worker that has just accepted is awake and would also take the next ones, up to all 32 of one client,
# while the other workers are still waking up. So it waits before it accepts again, longer the more it has.
ACCEPT_PAUSE = 0.0001  # seconds for each open connection
ACCEPT_BACKOFF_BELOW = 32  # connections: beyond, new ones would wait long behind others' requests
ACCEPTS = 16  # at once, then


class Listeners:
    """Accepts connections, which *connect* makes of a socket, its peer and the address of the listener.

    If descriptors are exhausted, one of *expendable* is closed.
    """

    def __init__(
        self,
        bound: Any,
        scheduler: Scheduler,
        connections: HttpConnections,
        expendable: HttpConnections,
        connect: Callable[[socket.socket, Any, Any], ClientConnection],
    ) -> None:
        self._sockets: dict[int, socket.socket] = {each.fileno(): each.sock for each in bound}
        self._scheduler = scheduler
        self._connections, self._expendable = connections, expendable
        self._connect = connect
        self.ready: list[int] = []  # those at which connections wait
        self.paused: list[int] = []  # those that are not watched while descriptors are exhausted
        self.pauses_until = 0.0
        for fd in self._sockets:
            scheduler.watch(fd, LISTEN, partial(self._notice, fd))

    def _notice(self, fd: int, _: int) -> None:
        if fd in self._sockets:
            self.ready.append(fd)

    def resume(self) -> None:
        """Accept again: there may be a free descriptor."""
        while self.paused:
            self._scheduler.change(self.paused.pop(), LISTEN)

    def accept(self) -> None:
        """Accept what waits, or only the first, and leave the next to another process during a pause."""
        if monotonic() < self.pauses_until:
            return
        ready, self.ready = self.ready, []
        for fd in ready:
            self._accept(fd)

    def _accept(self, fd: int) -> None:
        listener = self._sockets[fd]
        try:
            for _ in range(ACCEPTS):
                self._accept_one(listener)
                if len(self._connections.open) < ACCEPT_BACKOFF_BELOW:
                    self.ready.append(fd)
                    self.pauses_until = monotonic() + ACCEPT_PAUSE * len(self._connections.open)
                    return
        except (BlockingIOError, ConnectionAbortedError):
            pass
        except OSError:  # probably out of descriptors: an immediate retry would only use the processor
            self.paused.append(fd)
            self._expendable.close_longest_parked()  # which resumes the listeners
            return
        except BaseException:
            self.paused.append(fd)
            raise
        self._scheduler.change(fd, LISTEN)

    def close(self) -> None:
        """Take the connections that wait and close the listeners, or they would be reset at the end.

        Between the last `accept` and the `close` the kernel may still make a connection, and resets it if no
        other process holds the listener; under systemd's socket unit, and at a reload, one does.
        """
        self.ready.clear()
        self.paused.clear()
        while self._sockets:
            fd, listener = self._sockets.popitem()
            self._scheduler.change(fd, 0)
            with suppress(OSError):
                while True:
                    self._accept_one(listener)
            listener.close()

    def _accept_one(self, listener: socket.socket) -> None:
        """Accept one connection and watch it."""
        sock, peer = listener.accept()
        self._connections.add(self._connect(sock, peer, listener.getsockname()))
