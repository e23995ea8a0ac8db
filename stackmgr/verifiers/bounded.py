"""urllib3 connections with one deadline and one maximum size for a complete exchange.

`call` opens an exchange for the current thread.  Within it, every socket operation of these classes waits at
most until the deadline, and the bytes received are counted.
"""

import socket
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import ConnectTimeoutError, NameResolutionError, NewConnectionError

# Status line, headers, chunk framing and body together.
RECEIVED_LIMIT = 192 * 1024

# Middleboxes drop connections that are idle for longer, some without a reset.
LONGEST_IDLE = 30.0

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
                current = self._current = Future()
                threading.Thread(target=_look_up, args=(current, host, port), daemon=True).start()
        return current.result(timeout)


def _look_up(future: Future[Sequence[Address]], host: str, port: int) -> None:
    try:
        future.set_result(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    except (OSError, UnicodeError) as ex:
        future.set_exception(ex)


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


class _Current(threading.local):
    call: Call


_current = _Current()


@contextmanager
def call(resolver: Resolver, deadline: float) -> Iterator[Call]:
    """Open an exchange that ends at *deadline* on the monotonic clock."""
    _current.call = Call(resolver, deadline)
    try:
        yield _current.call
    finally:
        del _current.call


class Socket(socket.socket):
    """A socket whose operations wait at most until the deadline of the exchange."""

    used_at = 0.0

    def sendall(self, data: Any, flags: int = 0) -> None:
        """Send all of *data*."""
        self.settimeout(_current.call.left())
        super().sendall(data, flags)

    def recv_into(self, buffer: Any, nbytes: int | None = None, flags: int = 0) -> int:
        """Receive into *buffer*; http.client reads by no other method."""
        self.settimeout(_current.call.left())
        received = super().recv_into(buffer, nbytes or len(buffer), flags)
        self.used_at = time.monotonic()
        _current.call.count(received)
        return received


class TLSSocket(Socket, ssl.SSLSocket):
    """The same over TLS.  The handshake is one operation to the ssl module, with one time-out."""


class Connection(HTTPConnection):
    """A connection on such a socket, opened within the deadline of the exchange."""

    def _new_conn(self) -> socket.socket:
        call = _current.call
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
            connecting.settimeout(timeout)
            connecting.connect(where)
            connecting.settimeout(_current.call.left())
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
