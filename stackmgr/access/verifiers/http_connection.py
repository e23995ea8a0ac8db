"""A connection over HTTP or HTTPS.  Each exchange has one deadline and one size limit.

h11 parses the response.  Every operation on the socket waits at most until the deadline of the complete
exchange, and lets other requests run meanwhile.
"""

import socket
import ssl
from collections.abc import Callable, Iterator
from functools import partial
from itertools import takewhile
from time import monotonic
from typing import Any, TypeVar

import h11

from stackmgr.errors import ServiceUnavailable
from stackmgr.reasons import ReasonSlug
from stackmgr.scheduler import READABLE, WRITABLE, wait_for

# Status line, header fields and body together.  Unkey returns the metadata of a key and of its identity, each
# of up to 1 MB, with every verification.
RESPONSE_LIMIT_BYTES = 2_500_000
# Parts of a response, such as chunks: h11 parses so many in 40 ms, in which no other request runs.
_MAX_EVENTS = 10_000
# A TLS record has at most 16 KiB, so that none is read in part.
_RECEIVED_AT_ONCE_BYTES = 65_536

# Middleboxes drop connections that are idle for longer, some without a reset.
LONGEST_IDLE_SECONDS = 30.0
# The host's name may lead to another server by then.
LONGEST_USE_SECONDS = 60.0

_Result = TypeVar("_Result")
Address = tuple[socket.AddressFamily, socket.SocketKind, int, str, Any]
Response = tuple[int, str, bytes]  # status, Retry-After, content


class Connection:
    """A connection to *address*, with TLS if there is a context: the certificate must match *host*.

    Everything raises TimeoutError at its deadline on the monotonic clock.
    """

    def __init__(self, address: Address, tls: ssl.SSLContext | None, host: str, deadline: float) -> None:
        family, kind, protocol, _, where = address
        self._deadline = deadline
        self.received = 0  # bytes, in the latest exchange
        self.can_be_kept = False
        self._opened_at = self._used_at = monotonic()
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
        """Whether the connection has not been idle, or in use, for too long."""
        now = monotonic()
        return now - self._used_at < LONGEST_IDLE_SECONDS and now - self._opened_at < LONGEST_USE_SECONDS

    def is_usable(self) -> bool:
        """Whether an idle connection can be used again: nothing has arrived since, nor has its end."""
        return self.is_fresh() and not wait_for(self._socket.fileno(), READABLE, 0)

    def exchange(self, request: h11.Request, body: bytes, deadline: float) -> Response:
        """Send a request and return its response.

        Raises OSError, RemoteProtocolError of h11, or ServiceUnavailable for a response that is too long.
        """
        self._deadline, self.received, self.can_be_kept = deadline, 0, False
        # For this exchange alone: what it leaves unread is in no other.
        http = h11.Connection(h11.CLIENT)
        sent = http.send(request) + http.send(h11.Data(data=body)) + http.send(h11.EndOfMessage())
        left = memoryview(sent)
        while left:
            left = left[self._finished(WRITABLE, partial(self._socket.send, left)) :]
        events = self._events(http)
        response = next(event for event in events if isinstance(event, h11.Response))  # not informational
        content = [event.data for event in takewhile(lambda event: isinstance(event, h11.Data), events)]
        self.can_be_kept = http.our_state is http.their_state is h11.DONE and http.trailing_data == (
            b"",
            False,
        )
        self._used_at = monotonic()
        waits = [value for name, value in response.headers if name == b"retry-after"]
        return response.status_code, b", ".join(waits).decode("latin-1"), b"".join(content)

    def _events(self, http: h11.Connection) -> Iterator[Any]:
        """Yield the parts of the response as they arrive."""
        for _ in range(_MAX_EVENTS):
            event = http.next_event()
            if event is not h11.NEED_DATA:
                yield event
                continue
            data = self._finished(READABLE, partial(self._socket.recv, _RECEIVED_AT_ONCE_BYTES))
            self.received += len(data)
            if self.received > RESPONSE_LIMIT_BYTES:
                break
            http.receive_data(data)
        raise ServiceUnavailable(ReasonSlug.VERIFIER_RESPONSE_TOO_LONG)

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
