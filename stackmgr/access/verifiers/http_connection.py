"""A connection over HTTP or HTTPS.  Each exchange has one deadline and one size limit.

http.client parses the response, but its time-outs bound each read separately: a server that sends one byte a
second never exceeds one.  Here every operation on the socket waits at most until the deadline of the complete
exchange, lets other requests run meanwhile, and the received bytes are counted.
"""

import io
import socket
import ssl
from collections.abc import Callable
from email.message import Message
from functools import partial
from http.client import HTTPException, HTTPResponse, IncompleteRead
from time import monotonic
from typing import Any, TypeVar

from stackmgr.scheduler import READABLE, WRITABLE, wait_for

# Status line, header fields and body together.  Unkey returns the metadata of a key and of its identity, each
# of up to 1 MB, with every verification.
RESPONSE_LIMIT_BYTES = 2_500_000

# Middleboxes drop connections that are idle for longer, some without a reset.
LONGEST_IDLE_SECONDS = 30.0

_Result = TypeVar("_Result")
Address = tuple[socket.AddressFamily, socket.SocketKind, int, str, Any]
Response = tuple[int, Message, bytes]


class ResponseTooLong(HTTPException):
    """The response is longer than RESPONSE_LIMIT_BYTES."""


class _Reader(io.RawIOBase):
    """What the response is parsed from; closing it leaves the connection open."""

    def __init__(self, receive: Callable[[Any], int]) -> None:
        self._receive = receive

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._receive(buffer)


class Connection:
    """A connection to *address*, with TLS if there is a context: the certificate must match *host*.

    Everything raises TimeoutError at its deadline on the monotonic clock.
    """

    def __init__(self, address: Address, tls: ssl.SSLContext | None, host: str, deadline: float) -> None:
        family, kind, protocol, _, where = address
        self._deadline = deadline
        self.received = 0  # bytes, in the latest exchange
        self.can_be_kept = False
        self.used_at = 0.0
        self._socket = socket.socket(family, kind, protocol)
        try:
            self._socket.settimeout(0)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._finished(WRITABLE, partial(self._socket.connect, where))
            if tls is not None:
                self._socket = encrypted = tls.wrap_socket(
                    self._socket, server_hostname=host, do_handshake_on_connect=False
                )
                self._finished(READABLE, encrypted.do_handshake)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def is_fresh(self) -> bool:
        """Whether the connection has not been idle for too long."""
        return monotonic() - self.used_at < LONGEST_IDLE_SECONDS

    def is_usable(self) -> bool:
        """Whether an idle connection can be used again: a closed one is readable."""
        return self.is_fresh() and not wait_for(self._socket.fileno(), READABLE, 0)

    def exchange(self, request: bytes, deadline: float) -> Response:
        """Send a POST and return its response.  Raises OSError or HTTPException."""
        self._deadline, self.received, self.can_be_kept = deadline, 0, False
        left = memoryview(request)
        while left:
            left = left[self._finished(WRITABLE, partial(self._socket.send, left)) :]
        response = HTTPResponse(self, method="POST")  # type: ignore[arg-type] # it calls makefile() only
        response.begin()
        # A limited read, because an unlimited one allocates what Content-Length announces.
        content = response.read(RESPONSE_LIMIT_BYTES)
        if response.length:
            raise IncompleteRead(b"", response.length)
        self.used_at, self.can_be_kept = monotonic(), not response.will_close
        return response.status, response.headers, content

    def makefile(self, _: str) -> io.BufferedReader:
        """Return a file of the bytes that arrive."""
        return io.BufferedReader(_Reader(self._receive))

    def _receive(self, buffer: Any) -> int:
        received = self._finished(READABLE, partial(self._socket.recv_into, buffer))
        self.received += received
        if self.received > RESPONSE_LIMIT_BYTES:
            raise ResponseTooLong
        return received

    def _finished(self, events: int, operation: Callable[[], _Result]) -> _Result:
        """Return the result of *operation*, tried again after each of the *events* that it needs."""
        while (left := self._deadline - monotonic()) > 0:
            try:
                return operation()
            except BlockingIOError:
                wait_for(self._socket.fileno(), events, left)
            except ssl.SSLWantReadError:
                wait_for(self._socket.fileno(), READABLE, left)
            except ssl.SSLWantWriteError:
                wait_for(self._socket.fileno(), WRITABLE, left)
        raise TimeoutError
