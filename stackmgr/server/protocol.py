"""One HTTP/1.1 connection without a socket and without a clock: bytes in, requests out, responses back.

Whatever decides in which state a connection is happens in this module.  A request is returned only once it is
complete, so a client that is slow to send or to read costs memory and a deadline but never a greenlet.
"""

from dataclasses import dataclass
from io import BytesIO
from math import inf
from typing import NamedTuple

from stackmgr.errors import IncompleteRequest, InvalidRequest, RequestTimedOut, ServiceError
from stackmgr.limits import BODY_LIMIT_BYTES, REQUEST_SECONDS
from stackmgr.scheduler import READABLE, WRITABLE
from stackmgr.server.body import ChunkedDecoder, IncompleteBody
from stackmgr.server.request import BadRequest, HeadLimits, ReceivedRequest, find_section_end, request_id_of
from stackmgr.server.response import error_response

DRAIN_LIMIT = 33_554_432  # bytes: a client busy sending 10 MB must still be able to read its 413

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


@dataclass(eq=False, slots=True)
class State:
    """A row of the table of states."""

    name: str
    events: int  # that the connection is watched for
    seconds: float  # until the deadline, from the beginning of the state: a trickle does not move it


# A deadline ends no connection whose bytes have arrived, and no reader that makes progress.  In the states
# QUEUED and SERVING, the first event ends the watch: what arrives then is read after the response.
#
# fmt: off
#                 name        events    seconds                  at the deadline
IDLE = State(     "idle",     READABLE, float(REQUEST_SECONDS))  # closed; later `keepalive` s
READING = State(  "reading",  READABLE, float(REQUEST_SECONDS))  # 400; so at the end of input
QUEUED = State(   "queued",   READABLE, inf)                     # 503, by `RequestQueue`
SERVING = State(  "serving",  READABLE, inf)
WRITING = State(  "writing",  WRITABLE, 30.0)                    # closed, unless the client has read enough
DRAINING = State( "draining", READABLE, 2.0)                     # closed; so after DRAIN_LIMIT
CLOSED = State(   "closed",   0,        inf)

# What happens to a connection.
PART = "part"        # some of a request has arrived: an empty line before it does not count
REQUEST = "request"  # a request is complete
TURN = "turn"        # the request has its turn
OUTPUT = "output"    # there are bytes to send: a response, an error, 100 Continue
SENT = "sent"        # all of them are sent
LAST = "last"        # so, and the connection must be closed
END = "end"          # nothing more can be received or sent

TRANSITIONS: dict[State, dict[str, State]] = {
    IDLE:     {PART: READING, REQUEST: QUEUED, OUTPUT: WRITING, END: CLOSED},
    READING:  {PART: READING, REQUEST: QUEUED, OUTPUT: WRITING, END: CLOSED},
    QUEUED:   {TURN: SERVING, END: CLOSED},
    SERVING:  {OUTPUT: WRITING, END: CLOSED},
    WRITING:  {SENT: IDLE, LAST: DRAINING, END: CLOSED},
    DRAINING: {END: CLOSED},
    CLOSED:   dict.fromkeys((TURN, OUTPUT, END), CLOSED),  # the request of one that has left ends in it
}
# fmt: on


class Rejection(NamedTuple):
    """An error of the server's own: what has been responded, and why, for the log."""

    kind: type[ServiceError]
    request_id: str
    why: str


class Protocol:
    """What has been received and what is to be sent on one connection, and its state."""

    __slots__ = (
        "_decoder", "_drained", "_head", "_inbox", "_limits", "_request", "_searched", "has_ended",
        "must_close", "outbox", "state",
    )  # fmt: skip

    def __init__(self, limits: HeadLimits) -> None:
        self.state = IDLE
        self.outbox = bytearray()
        self.has_ended = False  # the client has closed its sending side
        self.must_close = False  # once the outbox is empty
        self._limits = limits
        self._inbox = bytearray()
        self._searched = 0  # bytes of the inbox that complete no head and no body
        self._head = b""  # of the last request
        self._request: ReceivedRequest | None = None  # its head has been parsed, its body is incomplete
        self._decoder: ChunkedDecoder | None = None
        self._drained = 0

    def _go(self, event: str) -> None:
        self.state = TRANSITIONS[self.state][event]

    @property
    def may_wait(self) -> bool:
        """Whether other connections come first: it is in a body, or what arrives is discarded."""
        return self._request is not None or self.state is DRAINING

    @property
    def may_continue(self) -> bool:
        """Whether there may be something to return that does not need more bytes."""
        if self.state is not IDLE and self.state is not READING:
            return False
        return self.has_ended or len(self._inbox) > self._searched

    @property
    def held(self) -> int:
        """Bytes in memory, of an unfinished request and of unsent responses."""
        return len(self._inbox) + len(self.outbox) + (len(self._decoder.content) if self._decoder else 0)

    @property
    def _has_part(self) -> bool:
        return bool(self._request or (self._inbox and self._inbox.rstrip(b"\r\n")))

    def receive(self, data: bytes) -> None:
        """Take bytes of the client, once those before cannot continue; none are the end of its input."""
        self.has_ended = not data
        if self.state is not DRAINING:
            self._inbox += data
            return
        self._drained += len(data)
        if self.has_ended or self._drained >= DRAIN_LIMIT:
            self._go(END)

    def proceed(self) -> ReceivedRequest | Rejection | None:
        """Return the next request, or the error that takes its place; None if more has to arrive."""
        try:
            request = self._next_request()
        except BadRequest as ex:
            return self._reject(InvalidRequest, str(ex))
        if request is not None:
            self._go(REQUEST)
        elif self.has_ended and self._has_part:
            return self._reject(IncompleteRequest, "it ended early")
        elif self.has_ended:
            self._go(END)
        elif self._request and self._request.expects_continue:
            self._request.expects_continue = False
            self.outbox += CONTINUE
            self._go(OUTPUT)
        elif self._has_part:
            self._go(PART)
        return request

    def _next_request(self) -> ReceivedRequest | None:
        request = self._request
        if request is None:
            request = self._parse_head()
            if request is None or self._decoder:
                return None  # chunks are decoded after the heads of other connections
        size = len(self._inbox)
        if not self._collect_body(request):
            self._searched = size if len(self._inbox) == size else 0
            return None
        self._request = self._decoder = None
        self._searched = 0
        return request

    def _parse_head(self) -> ReceivedRequest | None:
        self._head = b""
        end = find_section_end(self._inbox, self._searched)
        if end == 0:
            self._searched = len(self._inbox)
            return None
        self._head = bytes(self._inbox[:end])
        del self._inbox[:end]
        self._searched = 0
        request = self._request = ReceivedRequest(self._head, self._limits)
        if request.length is None:
            self._decoder = ChunkedDecoder(request)
        return request

    def _collect_body(self, request: ReceivedRequest) -> bool:
        """Return whether the body is complete, or exceeds the limit: the application rejects it then."""
        inbox, length = self._inbox, request.length
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

    def start(self) -> None:
        """Note that the application gets the request."""
        self._go(TURN)

    def respond(self, *parts: bytes, must_close: bool) -> None:
        """Take the response to the request: head and body leave together."""
        for part in parts:
            self.outbox += part
        self.must_close = must_close
        self._go(OUTPUT)

    def sent(self, count: int) -> None:
        """Note that so many bytes of the outbox have been sent."""
        del self.outbox[:count]
        if self.outbox:
            return
        if self.must_close:
            self._inbox.clear()
            self._go(LAST)
            return
        self._go(SENT)
        if self._has_part:
            self._go(PART)

    def leave(self) -> None:
        """Note that the client has reset the connection, or cannot be reached."""
        self._go(END)

    def expire(self) -> Rejection | None:
        """End the state whose deadline has passed."""
        if self.state is READING:
            return self._reject(RequestTimedOut, "it did not arrive in time")
        self._go(END)
        return None

    def fail(self) -> Rejection | None:
        """End what has failed, with an error if a request is there and no response has begun."""
        if self.state is SERVING or (self.state in (IDLE, READING) and self._has_part):
            return self._reject(ServiceError, "the service failed")
        self._go(END)  # a truncated response must look truncated
        return None

    def _reject(self, kind: type[ServiceError], why: str) -> Rejection:
        """Respond with an Error object of the server's own, then close."""
        # Of an incomplete head only the complete lines: half a line may be half an id.
        head = self._head or bytes(self._inbox).rpartition(b"\r\n")[0]
        request_id = request_id_of(head)
        self._inbox.clear()
        self._request = self._decoder = None
        is_head = head.lstrip(b"\r\n").startswith(b"HEAD ")
        self.respond(error_response(kind, request_id, has_body=not is_head), must_close=True)
        return Rejection(kind, request_id, why)
