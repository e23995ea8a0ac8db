"""One client connection of the gunicorn worker: bytes in, whole requests out, answers back, a polite close.

Nothing here waits. A request is handed on only when it is here whole, so that a client who is slow to send
or slow to read costs memory and a deadline but never a thread. What a request is, `request` decides; this
module only finds out when it is worth asking. The one exception is a body beyond `BODY_LIMIT`: it
is not collected, and an application that wants to read it reads from the socket, until the deadline.
"""

import re
import select
import socket
from io import BytesIO
from time import monotonic
from typing import Any
from uuid import uuid4

from gunicorn.http.body import Body, LengthReader
from gunicorn.http.errors import NoMoreData, ParseException
from gunicorn.util import http_date

from stackmgr.errors import error_object
from stackmgr.server.body import GuardedBody, IncompleteBody
from stackmgr.server.request import BadRequest, Limits, Request
from stackmgr.slots import give_up

READ_DEADLINE = 10.0  # seconds from the first byte of a request to its last
WRITE_DEADLINE = 30.0  # seconds for a client to take an answer the socket buffer could not hold
DRAIN_SECONDS = 2.0  # how long a closing connection listens for the client to close
BODY_LIMIT = 262_144  # bytes of a body collected before the application is called
HEAD_LIMIT = 65_536
CHUNKED_LIMIT = 2_097_152  # of a chunked body as sent: one-byte chunks are six times their content
DRAIN_LIMIT = 33_554_432  # a client busy sending 10 MB must still be able to read its 413
OUTBOX_LIMIT = 1_048_576  # of an answer produced in pieces, before its producer has to wait

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
BARE_LF = re.compile(rb"(?<!\r)\n")
CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,16})[^\r\n]{0,8160}\r\n")
CHUNK_LINE_LIMIT = 8192
REQUEST_ID = re.compile(rb"[\t\x20-\x7e\x80-\xff]+")


class Disconnected(Exception):
    """The client went away, or must be left: there is nobody to answer."""


class EndOfInput(Exception):
    """The client has sent all it will ever send."""


class ChunkScan:
    """Tells in linear time when a chunked body is worth decoding; gunicorn's ChunkedReader then judges it."""

    __slots__ = ("_at", "_skip", "size")

    def __init__(self) -> None:
        self._at = 0
        self._skip = 0
        self.size = 0  # bytes of content so far

    def complete(self, data: bytearray) -> bool:
        """Return whether the body is complete, or broken beyond waiting for more of it."""
        while True:
            step = min(self._skip, len(data) - self._at)
            self._at += step
            self._skip -= step
            self.size += step
            if self._skip:
                return False
            line = CHUNK_LINE.match(data, self._at)
            if line is None:
                begun = data[self._at : self._at + CHUNK_LINE_LIMIT]
                return len(begun) == CHUNK_LINE_LIMIT or b"\n" in begun
            length = int(line[1], 16)
            if length == 0:
                trailers = line.end() - 2
                return data.find(b"\r\n\r\n", trailers) >= 0 or len(data) - trailers > HEAD_LIMIT
            self._at = line.end()
            self._skip = length + 2
            self.size -= 2  # the CRLF behind the content


class ClientConnection:
    """The state of one client connection. Whoever took it out of `Worker.parked` owns it alone."""

    __slots__ = (
        "_scan", "_searched", "closing", "deadline", "drained", "environ", "fd", "head", "inbox",
        "outbox", "peer", "phase", "request", "sent", "sock", "turn_over",
    )  # fmt: skip

    def __init__(self, sock: socket.socket, peer: Any, server: Any) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.fd = sock.fileno()
        self.peer = peer[0] if isinstance(peer, tuple) else "unix"
        self.environ = addresses(peer, server)
        self.inbox = bytearray()
        self.outbox = bytearray()
        self.sent = False  # whether a byte of the present answer has left
        self.head = b""
        self.request: Request | None = None  # its head parsed, its body still to come
        self.closing = False  # after what is in the outbox
        self.turn_over = False  # there may be a whole request in the inbox: come back soon
        self.drained = 0
        self.phase = ""
        self.deadline = 0.0
        self._searched = 0
        self._scan: ChunkScan | None = None

    def fill(self) -> bool:
        """Read what has arrived; False when there is nothing yet, EndOfInput when there never will be."""
        try:
            data = self.sock.recv(65536 if self.request else 16384)
        except BlockingIOError:
            return False
        except OSError as exc:
            raise Disconnected from exc
        if not data:
            raise EndOfInput
        self.inbox += data
        return True

    def next_request(self, limits: Limits) -> Request | None:
        """Return the next request with its body collected, or None while some of it is missing."""
        request = self.request
        if request is None:
            request = self.request = self._parse_head(limits)
        if request is None or not self._collect_body(request):
            return None
        self.request = self._scan = None
        return request

    def _parse_head(self, limits: Limits) -> Request | None:
        inbox = self.inbox
        self.head = b""
        end = inbox.find(b"\r\n\r\n", self._searched)
        if end < 0:
            if len(inbox) > HEAD_LIMIT:
                raise BadRequest("head too long")
            if BARE_LF.search(inbox, self._searched):
                raise BadRequest("bare line feed")  # such a head need never end
            self._searched = max(0, len(inbox) - 3)
            return None
        self.head = bytes(inbox[: end + 4])
        del inbox[: end + 4]
        self._searched = 0
        return Request(self.head, limits)

    def _collect_body(self, request: Request) -> bool:
        inbox, length = self.inbox, request.length
        if length is not None:
            if length > BODY_LIMIT:
                return self._leave_body(request, LengthReader(request.unreader, length))
            if len(inbox) < length:
                return self._invite_body(request)
            request.body = BytesIO(inbox[:length])
            del inbox[:length]
            return True
        scan = self._scan = self._scan or ChunkScan()
        if scan.complete(inbox):
            return self._decode_chunks(request)
        if scan.size > BODY_LIMIT or len(inbox) > CHUNKED_LIMIT:
            return self._leave_body(request, request.chunks)
        return self._invite_body(request)

    def _decode_chunks(self, request: Request) -> bool:
        source = request.unreader
        source.unread(self.inbox)
        try:
            request.body = BytesIO(Body(request.chunks).read())
        except (ParseException, NoMoreData) as exc:
            raise BadRequest(type(exc).__name__) from None
        self.inbox = bytearray(source.rest())
        return True

    def _leave_body(self, request: Request, reader: Any) -> bool:
        """Let the application read, or refuse, a body that is too large to collect."""
        deadline = self.deadline if self.phase == "reading" else monotonic() + READ_DEADLINE

        def more(size: int) -> bytes:
            self._invite_body(request)
            if not self._wait(select.POLLIN, deadline):
                raise IncompleteBody("deadline")
            return self.sock.recv(size)

        request.unreader.unread(self.inbox)
        request.unreader.more = more
        request.body = GuardedBody(reader)
        request.must_close = True  # where the next request starts is not known before this body is read
        self.inbox.clear()
        return True

    def _invite_body(self, request: Request) -> bool:
        """Say `100 Continue` if the client waits for it."""
        if request.expects_continue:
            request.expects_continue = False
            self.outbox += CONTINUE
            self.flush()
            self.sent = False  # of the answer itself
        return False

    def _wait(self, event: int, deadline: float) -> bool:
        give_up()
        poll = select.poll()
        poll.register(self.fd, event)
        return bool(poll.poll(max(0.0, deadline - monotonic()) * 1000))

    def put(self, data: bytes) -> None:
        """Take bytes to send at the next `flush`: head and body leave together."""
        self.outbox += data

    def flush(self) -> None:
        """Send what the socket takes; the rest stays in the outbox."""
        while self.outbox:
            self.sent = True
            try:
                del self.outbox[: self.sock.send(self.outbox)]
            except BlockingIOError:
                return
            except OSError as exc:
                raise Disconnected from exc

    def make_room(self) -> None:
        """Let the producer of an answer in pieces wait, until a deadline, for a client who falls behind."""
        if len(self.outbox) <= OUTBOX_LIMIT:
            return
        deadline = monotonic() + WRITE_DEADLINE
        while len(self.outbox) > OUTBOX_LIMIT:
            if not self._wait(select.POLLOUT, deadline):
                raise Disconnected
            self.flush()

    def refuse(self, status: str, code: str, message: str) -> None:
        """Answer with an Error object of the server's own, then close."""
        head = self.head or bytes(self.inbox).rpartition(b"\r\n")[0]  # half a line may be half an id
        request_id = request_id_of(head)
        body = error_object(code, message, request_id)
        self.outbox[:] = (
            f"HTTP/1.1 {status}\r\nDate: {http_date()}\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nCache-Control: no-store\r\n"
            f"X-Request-Id: {request_id}\r\nContent-Length: {len(body)}\r\n\r\n"
        ).encode("latin-1")
        if not head.lstrip(b"\r\n").startswith(b"HEAD "):
            self.outbox += body
        self.inbox.clear()
        self.request = None
        self.closing = True
        self.flush()

    def drain(self) -> bool:
        """Throw away what still comes after the last answer; False when it is time to close."""
        while self.drained < DRAIN_LIMIT:
            try:
                count = len(self.sock.recv(262_144))
            except BlockingIOError:
                return True
            except OSError:
                return False
            if not count:
                return False
            self.drained += count
        return False


def request_id_of(head: bytes) -> str:
    """Return the request id in a raw head, as the application would get it, or else a new one."""
    lines = head.partition(b"\r\n\r\n")[0].split(b"\r\n")[1:]
    fields = (line.partition(b":") for line in lines)
    value = b",".join(text.strip(b" \t") for name, _, text in fields if name.lower() == b"x-request-id")
    return value.decode("latin-1") if REQUEST_ID.fullmatch(value) else str(uuid4())


def addresses(peer: Any, server: Any) -> dict[str, str]:
    """Return what the environ of each request on a connection says of its two ends."""
    if isinstance(peer, tuple):
        host, port, *_ = server
        return {
            "REMOTE_ADDR": peer[0], "REMOTE_PORT": str(peer[1]), "SERVER_NAME": host, "SERVER_PORT": str(port)
        }  # fmt: skip
    # A unix socket has neither; a port that no listener has, so that no Host header can name one.
    return {"REMOTE_ADDR": "", "SERVER_NAME": "localhost", "SERVER_PORT": "0"}
