"""Simulated HTTP clients: two threads each, one that sends and one that reads, and judges the responses."""

from dataclasses import dataclass
from math import inf

from tests.simulation.sockets import Backlog, Stream
from tests.simulation.world import World

OVERLOAD = "too many wait, or for too long"
_OPERATOR_SECONDS = 0.25  # until a response to an operator, whatever managers do
_ARRIVED_SECONDS = 0.001


@dataclass
class Request:
    """`/KIND/NUMBER`: what the application does, for how many milliseconds, or with how many bytes."""

    name: str
    kind: str
    number: int
    key: str
    body: bytes = b""
    begun_at: float = inf
    sent_at: float = inf  # its last byte
    stalled_before: float = 0.0

    @property
    def raw(self) -> bytes:
        head = (
            f"{'POST' if self.body else 'GET'} /{self.kind}/{self.number} HTTP/1.1\r\nHost: simulated\r\n"
            f"X-Request-Id: {self.name}\r\nAuthorization: Bearer {self.key}\r\n"
            f"Content-Length: {len(self.body)}\r\n\r\n"
        )
        return head.encode("ascii") + self.body


def content_of(name: str, size: int) -> bytes:
    """Return *size* bytes that belong to the request of this name."""
    text = f"{name},".encode("ascii")
    return (text * (size // len(text) + 1))[:size]


@dataclass
class Manners:
    """How a client behaves; as it stands, it is patient and quick."""

    starts_at: float = 0.0
    thinks: float = 0.0  # before each further request
    is_pipelining: bool = False
    piece: int = 1 << 20  # bytes sent at once
    sends_every: float = 0.0
    reads: int = 1 << 20  # bytes read at once
    reads_every: float = 0.0
    reads_at_most: int = 1 << 30  # bytes
    leaves_after: int = -1  # bytes sent
    leaves: str = "leaving"  # or "resetting", "half-closing", "silent"
    stays: bool = False  # until the server closes
    is_hurried: bool = False  # as an operator is


class Client:
    def __init__(
        self, world: World, name: str, backlog: Backlog, requests: list[Request], manners: Manners
    ) -> None:
        self.world, self.name, self.manners = world, name, manners
        self.requests, self.responded = requests, 0
        self.excuse = ""  # why requests may remain without a response
        self.has_left = self.is_closed = False
        self.connected_at = inf
        self._stream = Stream(world, self)
        self._backlog = backlog
        self._content = bytearray()
        self._sent = 0
        self._threads = [world.start(name, self._send), world.start(f"{name} reads", self._read)]

    @property
    def is_done(self) -> bool:
        return not any(thread.is_alive() for thread in self._threads)

    def _send(self) -> None:
        manners, world = self.manners, self.world
        world.block(manners.starts_at)
        self.connected_at = world.now
        if not self._backlog.connect(self._stream):
            self.excuse = self.excuse or "refused"
            self._stream.end(is_reset=True)
            return
        for number, request in enumerate(self.requests):
            while not manners.is_pipelining and self.responded < number and not self.is_closed:
                self._stream.wait()
            if number and manners.thinks:
                world.block(manners.thinks)
            if not self._send_request(request):
                return
        while self.responded < len(self.requests) and not self.is_closed:
            self._stream.wait()
        if not manners.stays and not self.is_closed:
            self._leave("leaving")

    def _send_request(self, request: Request) -> bool:
        """Send a request, and return whether to go on; leave where that is planned."""
        manners, left, stream = self.manners, request.raw, self._stream
        while left and not self.is_closed:
            most = manners.piece if manners.leaves_after < 0 else manners.leaves_after - self._sent
            count = stream.send(left[: min(manners.piece, most)])
            self._sent, left = self._sent + count, left[count:]
            if count:
                request.begun_at = min(request.begun_at, self.world.now)
            if not left:
                request.sent_at, request.stalled_before = self.world.now, self.world.stalled
                self.world.note("sent", request.name, request.kind, request.number)
            if self._sent == manners.leaves_after:
                self._leave(manners.leaves)
                return False
            if left and count:
                self.world.block(manners.sends_every)
            elif left:
                stream.wait()
        return not left

    def _leave(self, how: str) -> None:
        self.world.note("leaves", self.name, how)
        if how == "half-closing":
            self._stream.finish()
        elif how != "silent":
            self.has_left = True
            self._stream.close(resets=how == "resetting")

    def _read(self) -> None:
        manners, stream = self.manners, self._stream
        while not self.has_left:
            if not (stream.is_ended or stream.is_reset if manners.reads_at_most <= 0 else stream.has_output):
                stream.wait()
                continue
            if manners.reads_every:
                self.world.block(manners.reads_every)
            data = stream.read(manners.reads)
            manners.reads_at_most -= len(data)
            self._content += data
            self._take_responses()
            if not data:
                self.is_closed = True
                break
        if self.is_closed:
            stream.close(resets=False)
            self._require_responses()

    def _take_responses(self) -> None:
        while (end := self._content.find(b"\r\n\r\n") + 4) > 3:
            line, *lines = self._content[: end - 4].decode("latin-1").split("\r\n")
            fields = dict(each.split(": ", 1) for each in lines)
            end_of_body = end + int(fields["Content-Length"])
            if len(self._content) < end_of_body:
                return
            body = bytes(self._content[end:end_of_body])
            del self._content[:end_of_body]
            if self.responded == len(self.requests) or self.requests[self.responded].begun_at == inf:
                self.world.fail("each request has one response, in order", f"{self.name}: unasked")
                return
            request = self.requests[self.responded]
            self.responded += 1
            self._judge(request, int(line.split(" ")[1]), fields, body)
            if fields["Connection"] == "close":
                self.excuse = self.excuse or "the server closes"
            self._stream.changed()

    def _judge(self, request: Request, status: int, fields: dict[str, str], body: bytes) -> None:
        """Fail the run if this is not the response of *request*, or an error without a reason."""
        world, plan = self.world, self.world.plan
        world.note("response", request.name, status)
        expected = request.name, content_of(request.name, len(body))
        if status == 200 and (fields["X-Request-Id"], body) != expected:
            world.fail("each request has one response, in order", request.name)
        seconds = world.now - request.sent_at - (world.stalled - request.stalled_before)
        if self.manners.is_hurried and seconds > _OPERATOR_SECONDS:
            world.fail("an operator waits for no manager", f"{request.name}: {seconds:.3f} s")
        is_late = world.now - request.begun_at >= plan["limits"]["read deadline"] - _ARRIVED_SECONDS
        is_due = {
            200: request.kind != "raise",
            400: self.manners.leaves == "half-closing",
            500: request.kind == "raise",
            503: (is_late or OVERLOAD in world.touched[request.name]) and "Retry-After" in fields,
        }
        if not is_due.get(status):
            world.fail("an error names a fault of its request", f"{request.name} {request.kind}: {status}")

    def _require_responses(self) -> None:
        """Fail the run if a request that had arrived when the server closed has no response."""
        if self.excuse or self.manners.reads_at_most <= 0 or self.responded == len(self.requests):
            return
        arrived = self._stream.ended_at - self.requests[self.responded].begun_at
        if arrived > _ARRIVED_SECONDS:
            name = self.requests[self.responded].name
            self.world.fail("each request has one response, in order", f"{name}: none, after {arrived:.3f} s")
