"""One client connection: bytes in, complete requests out, responses back, and a close that loses nothing.

Nothing here waits. A request is dispatched only once it has been received completely, so a client that is
slow to send or to read costs memory and a deadline but never a greenlet.
"""

import socket
from fcntl import ioctl
from io import BytesIO
from sys import byteorder
from termios import TIOCOUTQ
from typing import Any

from stackmgr.admission import ADMISSION
from stackmgr.errors import ServiceError
from stackmgr.limits import BODY_LIMIT_BYTES, FRAMING_LIMIT_BYTES
from stackmgr.server import IDLE, Phase
from stackmgr.server.body import ChunkedDecoder, IncompleteBody
from stackmgr.server.queue import Place
from stackmgr.server.request import HeadLimits, ReceivedRequest, find_section_end
from stackmgr.server.response import error_response

WRITE_PROGRESS = 65_536  # bytes that a client has to take until the deadline of WRITING
DRAIN_LIMIT = 33_554_432  # bytes: a client busy sending 10 MB must still be able to read its 413
INBOX_LIMIT = BODY_LIMIT_BYTES + FRAMING_LIMIT_BYTES  # bytes: no request needs more of them at once

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Disconnected(Exception):
    """The client has closed the connection, or it must be closed: no response can be sent."""


class EndOfInput(Exception):
    """The client has closed its sending side."""


class ClientConnection:
    """The state of one client connection."""

    __slots__ = (
        "_decoder", "_searched", "closing", "deadline", "drained", "environ", "events", "fd",
        "has_ended", "has_event", "head", "inbox", "is_gone", "is_ready", "outbox", "peer", "phase", "place",
        "request", "sent", "sock", "unread",
    )  # fmt: skip

    def __init__(self, sock: socket.socket, peer: Any, server: Any, place: Place) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.fd = sock.fileno()
        self.peer = peer[0] if isinstance(peer, tuple) else "unix"
        self.place = place
        self.environ: dict[str, Any] = {**addresses(peer, server), ADMISSION: place}
        self.inbox = bytearray()
        self.outbox = bytearray()
        self.sent = False  # whether a byte of the current response has been sent
        self.head = b""
        self.request: ReceivedRequest | None = None  # its head has been parsed, its body is incomplete
        self.closing = False  # once the outbox is empty
        self.has_event = False  # since it was read last
        self.has_ended = False  # the client has closed its sending side
        self.is_gone = False  # the client has reset the connection
        self.is_ready = False  # something can be done at once
        self.drained = 0
        self.phase: Phase = IDLE
        self.events = 0  # those that it is watched for
        self.deadline = 0.0
        self._searched = 0
        self._decoder: ChunkedDecoder | None = None
        self.unread = 0  # bytes that the client had not read when the present deadline was set

    @property
    def has_partial_request(self) -> bool:
        """Whether some of a request has been read: an empty line before it does not count."""
        return bool(self.request or (self.inbox and self.inbox.rstrip(b"\r\n")))

    @property
    def may_continue(self) -> bool:
        """Whether there may be a complete request, or more chunks of one, that have not been looked at."""
        return self.has_event or (self.request is None and len(self.inbox) > self._searched)

    @property
    def held(self) -> int:
        """Bytes in memory, of an unfinished request and of unread responses."""
        content = self._decoder.held if self._decoder else 0
        return len(self.inbox) + len(self.outbox) + content

    def has_input(self) -> bool:
        """Return whether bytes have arrived.  Raises Disconnected if the client has reset the connection."""
        try:
            return bool(self.sock.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return False
        except OSError as exc:
            raise Disconnected from exc

    def receive(self, limits: HeadLimits) -> ReceivedRequest | None:
        """Read and parse a part of what has arrived; return the next request once it is complete.

        Raises BadRequest, EndOfInput, Disconnected.
        """
        if self.has_event and len(self.inbox) < INBOX_LIMIT:
            self._fill()
        request = self._next_request(limits)
        if request is None and self.has_ended and not self.may_continue:
            raise EndOfInput
        return request

    def _fill(self) -> None:
        size = 65536 if self.request else 16384
        try:
            data = self.sock.recv(size)
        except BlockingIOError:
            self.has_event = False
            return
        except OSError as exc:
            raise Disconnected from exc
        self.has_event = len(data) == size  # there may be more
        self.has_ended = not data
        self.inbox += data

    def _next_request(self, limits: HeadLimits) -> ReceivedRequest | None:
        request = self.request or self._parse_head(limits)
        if request is None:
            return None
        if not self._collect_body(request):
            self._send_continue(request)
            return None
        self.request = self._decoder = None
        return request

    def _parse_head(self, limits: HeadLimits) -> ReceivedRequest | None:
        self.head = b""
        end = find_section_end(self.inbox, self._searched)
        if end == 0:
            self._searched = len(self.inbox)
            return None
        self.head = bytes(self.inbox[:end])
        del self.inbox[:end]
        self._searched = 0
        request = self.request = ReceivedRequest(self.head, limits)
        if request.length is None:
            self._decoder = ChunkedDecoder(request)
        return request

    def _collect_body(self, request: ReceivedRequest) -> bool:
        """Return whether the body is complete, or exceeds the limit: the application rejects it then."""
        inbox, length = self.inbox, request.length
        if length is not None and length <= BODY_LIMIT_BYTES:
            if len(inbox) < length:
                return False
            request.body = BytesIO(inbox[:length])
            del inbox[:length]
            return True
        if self._decoder is None:
            request.body = IncompleteBody()
        elif self._decoder.feed(inbox):
            request.body = self._decoder.body()
        else:
            return False
        if isinstance(request.body, IncompleteBody):
            request.must_close = True  # the next request starts after the bytes that are not collected
            inbox.clear()
        return True

    def _send_continue(self, request: ReceivedRequest) -> None:
        """Send `100 Continue` if the client waits for it; after its end, an error follows at once."""
        if request.expects_continue and not self.has_ended:
            request.expects_continue = False
            self.queue(CONTINUE)
            self.flush()
            self.sent = False  # of the final response

    def queue(self, data: bytes) -> None:
        """Add bytes to send at the next `flush`: head and body leave together."""
        self.outbox += data

    def flush(self) -> None:
        """Send what the socket takes at once; the rest stays in the outbox. Raises Disconnected."""
        if self.outbox:
            self.sent = True
            try:
                del self.outbox[: self.sock.send(self.outbox)]
            except BlockingIOError:
                pass
            except OSError as exc:
                raise Disconnected from exc

    def count_unread(self) -> int:
        """Return how many bytes the client's system has not acknowledged; the kernel holds some of them."""
        return len(self.outbox) + int.from_bytes(ioctl(self.fd, TIOCOUTQ, bytes(4)), byteorder)

    def note_progress(self) -> bool:
        """Return whether the client has read WRITE_PROGRESS bytes since this was last so."""
        unread = self.count_unread()
        if unread > self.unread - WRITE_PROGRESS:
            return False
        self.unread = unread
        return True

    def received_head(self) -> bytes:
        """Return the head of the request, or its complete lines: half a line may be half an id."""
        return self.head or bytes(self.inbox).rpartition(b"\r\n")[0]

    def send_error(self, kind: type[ServiceError], request_id: str) -> None:
        """Respond with an Error object of the server's own, then close."""
        head = self.received_head()
        self.outbox.clear()
        is_head = head.lstrip(b"\r\n").startswith(b"HEAD ")
        self.queue(error_response(kind, request_id, has_body=not is_head))
        self.inbox.clear()
        self.request = self._decoder = None
        self.closing = True
        self.flush()

    def drain(self) -> None:
        """Discard what arrives after the last response. Raises Disconnected when it is time to close."""
        while self.drained < DRAIN_LIMIT:
            try:
                count = len(self.sock.recv(262_144))
            except BlockingIOError:
                return
            except OSError as exc:
                raise Disconnected from exc
            if not count:
                break
            self.drained += count
        raise Disconnected


def addresses(peer: Any, server: Any) -> dict[str, str]:
    """Return the part of the environ that is the same for all requests of a connection."""
    if isinstance(peer, tuple):
        host, port, *_ = server
        return {
            "REMOTE_ADDR": peer[0], "REMOTE_PORT": str(peer[1]), "SERVER_NAME": host, "SERVER_PORT": str(port)
        }  # fmt: skip
    # A unix socket has neither; a port that no listener has, so that no Host header can name one.
    return {"REMOTE_ADDR": "", "SERVER_NAME": "localhost", "SERVER_PORT": "0"}
