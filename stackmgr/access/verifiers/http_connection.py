"""An HTTP connection.  Each exchange has one deadline and one size limit.

h11 parses the response.  Each operation on the socket lets other requests run while it waits.
"""

import socket
import ssl
from collections.abc import Callable, Iterator
from functools import partial
from itertools import takewhile
from time import monotonic
from typing import Any

import h11

from stackmgr.errors import ServiceUnavailable
from stackmgr.reasons import ReasonSlug
from stackmgr.scheduler import READABLE, WRITABLE, wait_for

# Status line, header fields and body together.  With every verification Unkey returns the metadata
# of a key and of its identity, each of up to 1 MB.
RESPONSE_LIMIT_BYTES = 2_500_000
# Status line and header fields, with those of informational responses.  Reading this and one read
# more, all of short lines, takes h11 10 ms.  By itself it limits only a head that arrives in pieces.
HEAD_LIMIT_BYTES = 20_480
_READ_BYTES = 16_384  # no TLS record is longer: none is read in part, so that what is left is readable
# Parts of a response, such as chunks: h11 parses so many in 40 ms, in which no other request runs.
_MAX_EVENTS = 10_000
# Middleboxes drop connections that are idle for longer, and the host may have another address then.
LONGEST_USE_SECONDS = 30.0

_TLS_EVENTS: dict[type[Exception], int] = {ssl.SSLWantReadError: READABLE, ssl.SSLWantWriteError: WRITABLE}
Address = tuple[socket.AddressFamily, socket.SocketKind, int, str, Any]
Request = tuple[h11.Request, h11.Data, h11.EndOfMessage]
Response = tuple[int, str, str, bytes]  # status, Retry-After, Date, content


def is_response(status: int) -> bool:
    """Whether *status* is the verifier's own: by others, a proxy says that it has no response."""
    return status < 500 and status not in (408, 499)


class HttpConnection:
    """A connection to *address*, with TLS if there is a context: the certificate must match *host*.

    Everything raises TimeoutError at its deadline on the monotonic clock.
    """

    def __init__(self, address: Address, tls: ssl.SSLContext | None, host: str, deadline: float) -> None:
        family, kind, protocol, _, where = address
        self._deadline = deadline
        self.received = 0  # bytes, in the latest exchange
        self.can_be_kept = False
        self._opened_at = monotonic()
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
        self._socket.close()

    def is_usable(self) -> bool:
        """Whether an idle connection is usable: not too old, and nothing has arrived since."""
        is_young = monotonic() - self._opened_at < LONGEST_USE_SECONDS
        return is_young and not wait_for(self._socket.fileno(), READABLE, 0)

    def exchange(self, request: Request, deadline: float) -> Response:
        """Send a request and return its response.

        Raises OSError, RemoteProtocolError of h11, or ServiceUnavailable for one that is too long.
        """
        self._deadline, self.received, self.can_be_kept = deadline, 0, False
        # Of this exchange alone: no other reads what it leaves.
        http = h11.Connection(h11.CLIENT, max_incomplete_event_size=RESPONSE_LIMIT_BYTES)
        left = memoryview(b"".join(http.send(event) or b"" for event in request))
        while left:
            left = left[self._finished(WRITABLE, partial(self._socket.send, left)) :]
        events = self._events(http)
        response = next(event for event in events if isinstance(event, h11.Response))  # not informational
        content = b"".join(event.data for event in takewhile(lambda each: isinstance(each, h11.Data), events))
        is_done = http.our_state is http.their_state is h11.DONE and http.trailing_data == (b"", False)
        self.can_be_kept = is_done and is_response(response.status_code)
        wait, date = (
            b", ".join(value for name, value in response.headers if name == field).decode("latin-1")
            for field in (b"retry-after", b"date")
        )
        return response.status_code, wait, date, content

    def _events(self, http: h11.Connection) -> Iterator[Any]:
        for _ in range(_MAX_EVENTS):
            is_head = http.their_state is h11.SEND_RESPONSE
            event = http.next_event()
            behind = b"" if event is h11.NEED_DATA else http.trailing_data[0]
            if is_head and self.received - len(behind) > HEAD_LIMIT_BYTES:
                break
            if event is not h11.NEED_DATA:
                yield event
                continue
            data = self._finished(READABLE, partial(self._socket.recv, _READ_BYTES))
            self.received += len(data)
            if self.received > RESPONSE_LIMIT_BYTES:
                break
            http.receive_data(data)
        raise ServiceUnavailable(ReasonSlug.VERIFIER_RESPONSE_TOO_LONG)

    def _finished(self, events: int, operation: Callable[[], Any]) -> Any:
        """Return the result of *operation*, repeated after each of *events*, or what TLS needs."""
        while (left := self._deadline - monotonic()) > 0:
            try:
                return operation()
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError) as ex:
                wait_for(self._socket.fileno(), _TLS_EVENTS.get(type(ex), events), left)
        raise TimeoutError
