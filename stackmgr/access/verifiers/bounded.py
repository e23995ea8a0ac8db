"""urllib3 connections with one deadline and one maximum size for a complete exchange.

`call` opens an exchange for the current greenlet or thread.  Within it, every socket operation of these
classes waits at most until the deadline, lets other requests run meanwhile, and counts the bytes received.
"""

import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from errno import EINPROGRESS
from functools import partial
from typing import Any, TypeVar

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import ConnectTimeoutError, NameResolutionError, NewConnectionError

from stackmgr.scheduler import READABLE, WRITABLE, result, start_thread, wait_for

# Status line, headers, chunk framing and body together.
RECEIVED_LIMIT = 192 * 1024

# Middleboxes drop connections that are idle for longer, some without a reset.
LONGEST_IDLE = 30.0

_Result = TypeVar("_Result")
Address = tuple[socket.AddressFamily, socket.SocketKind, int, str, Any]


class Resolver:
    """Look-ups of one host, which `getaddrinfo` cannot bound in time.

    Each runs in a thread of its own, one at a time: however long the system's resolver takes, it blocks one
    thread of the process, and every request keeps its deadline.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._current: Future[Sequence[Address]] | None = None

    def addresses(self, host: str, port: int, timeout: float) -> Sequence[Address]:
        """Return the host's addresses.  Raises TimeoutError or OSError."""
        with self._lock:
            current = self._current
            if current is None or current.done():
                look_up = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
                try:
                    current = self._current = start_thread(look_up)
                except RuntimeError as ex:
                    raise socket.gaierror(socket.EAI_AGAIN, "no more threads") from ex
        return result(current, timeout)


class Call:
    """One exchange: its deadline, and what has happened in it so far."""

    def __init__(self, resolver: Resolver, deadline: float) -> None:
        self.resolver = resolver
        self.deadline = deadline
        self.received = 0
        self.connected = False

    def left(self) -> float:
        """Return the remaining seconds.  Raises TimeoutError if there are none."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the deadline of the exchange has passed")
        return left

    def count(self, received: int) -> None:
        """Count received bytes.  Raises OSError beyond the maximum."""
        self.received += received
        if self.received > RECEIVED_LIMIT:
            raise OSError("the response is too long")

    @property
    def died_idle(self) -> bool:
        """Whether only a connection kept from an earlier exchange can have failed."""
        return not self.connected and self.received == 0


_current: ContextVar[Call] = ContextVar("call")


@contextmanager
def call(resolver: Resolver, deadline: float) -> Iterator[Call]:
    """Open an exchange that ends at *deadline* on the monotonic clock."""
    opened = Call(resolver, deadline)
    token = _current.set(opened)
    try:
        yield opened
    finally:
        _current.reset(token)


class Socket(socket.socket):
    """A socket whose operations wait at most until the deadline of the exchange."""

    used_at = 0.0

    def sendall(self, data: Any, flags: int = 0) -> None:
        """Send all of *data*."""
        with memoryview(data) as view, view.cast("B") as left:
            sent = 0
            while sent < len(left):
                sent += self._finished(WRITABLE, partial(self.send, left[sent:], flags))

    def recv_into(self, buffer: Any, nbytes: int | None = None, flags: int = 0) -> int:
        """Receive into *buffer*; http.client reads by no other method."""
        received = self._finished(READABLE, partial(super().recv_into, buffer, nbytes or len(buffer), flags))
        self.used_at = time.monotonic()
        _current.get().count(received)
        return received

    def _finished(self, events: int, operation: Callable[[], _Result]) -> _Result:
        """Return the result of *operation*, tried again after each of the *events* that it needs."""
        call = _current.get()
        self.settimeout(0)
        while True:
            call.left()
            try:
                return operation()
            except BlockingIOError:
                wait_for(self.fileno(), events, call.left())
            except ssl.SSLWantReadError:
                wait_for(self.fileno(), READABLE, call.left())
            except ssl.SSLWantWriteError:
                wait_for(self.fileno(), WRITABLE, call.left())


class TLSSocket(Socket, ssl.SSLSocket):
    """The same over TLS."""

    def do_handshake(self, block: bool = False) -> None:  # noqa: FBT002 - as in the base class
        """Perform the handshake, which the ssl module does as soon as a connected socket is wrapped."""
        self._finished(READABLE, super().do_handshake)


def _require_connected(connecting: socket.socket, where: Any, timeout: float) -> None:
    failure = connecting.connect_ex(where)
    if failure == EINPROGRESS:
        if not wait_for(connecting.fileno(), WRITABLE, timeout):
            raise TimeoutError
        failure = connecting.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if failure:
        raise OSError(failure, os.strerror(failure))


class Connection(HTTPConnection):
    """A connection on such a socket, opened within the deadline of the exchange."""

    def _new_conn(self) -> socket.socket:
        call = _current.get()
        call.connected = True
        try:
            addresses = call.resolver.addresses(self._dns_host, self.port, call.left())
        except TimeoutError as ex:
            raise ConnectTimeoutError(self, "name resolution timed out") from ex
        except (socket.gaierror, UnicodeError) as ex:
            raise NameResolutionError(self.host, self, socket.gaierror()) from ex
        failure: OSError | None = None
        for position, address in enumerate(addresses):
            try:
                # An address that drops packets must leave time for the next one.
                return self._connect(address, call.left() / (len(addresses) - position))
            except OSError as ex:
                failure = ex
        if isinstance(failure, TimeoutError):
            raise ConnectTimeoutError(self, "connecting timed out") from failure
        raise NewConnectionError(self, "no address responded") from failure

    def _connect(self, address: Address, timeout: float) -> socket.socket:
        family, kind, protocol, _, where = address
        connecting = Socket(family, kind, protocol)
        try:
            for option in self.socket_options or ():
                connecting.setsockopt(*option)
            connecting.settimeout(0)
            _require_connected(connecting, where, timeout)
            connecting.settimeout(_current.get().left())  # the ssl module wraps no other
        except OSError:
            connecting.close()
            raise
        return connecting

    @property
    def is_connected(self) -> bool:
        """Whether the connection can be reused."""
        return (
            super().is_connected
            and isinstance(self.sock, Socket)
            and time.monotonic() - self.sock.used_at < LONGEST_IDLE
        )


class TLSConnection(Connection, HTTPSConnection):
    """The same over TLS."""


class ConnectionPool(urllib3.HTTPConnectionPool):
    """Connections to one host."""

    ConnectionCls = Connection


class TLSConnectionPool(urllib3.HTTPSConnectionPool):
    """Connections to one host over TLS."""

    ConnectionCls = TLSConnection
