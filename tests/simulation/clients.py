"""Simulated HTTP clients: what they send, how fast, when they leave, and what they are sent.

A client is two agents on the world's agenda, one that sends and one that reads.  It fails the run if a
response is not that of its next request, or if it was patient and is not responded to.
"""

import re
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.sockets import Backlog, Network, RemoteEnd
from tests.simulation.world import World

# Seconds to wait, or None to wait until something has changed.
Steps = Iterator[float | None]
_HEAD = re.compile(rb"HTTP/1\.1 ([0-9]{3}) [^\r]*\r\n")


class Agent:
    """Runs *steps* on the agenda."""

    def __init__(self, world: World, steps: Steps) -> None:
        self.world = world
        self.is_done = False
        self._steps = steps
        self._is_waiting = False
        world.at(0.0, self._step)

    def _step(self) -> None:
        self._is_waiting = False
        try:
            seconds = next(self._steps)
        except StopIteration:
            self.is_done = True
            return
        if seconds is None:
            self._is_waiting = True
        else:
            self.world.at(seconds, self._step)

    def wake(self) -> None:
        """End a wait for a change."""
        if self._is_waiting:
            self._is_waiting = False
            self.world.at(0.0001, self._step)


@dataclass
class Request:
    """A request and what became of it."""

    name: str
    path: str
    key: str
    raw: bytes
    body: bytes = b""
    is_head: bool = False
    is_valid: bool = True
    sent_at: float = 0.0  # its last byte
    stalled_before: float = 0.0
    has_begun: bool = False
    status: int = 0


@dataclass
class Response:
    """A response as it arrived."""

    status: int
    fields: dict[str, str]
    body: bytes


@dataclass
class Parser:
    """Cuts what arrives into responses."""

    content: bytearray = field(default_factory=bytearray)

    def next(self, *, is_head: bool) -> Response | None:
        """Return the next complete response, or None."""
        end = self.content.find(b"\r\n\r\n")
        if end < 0:
            return None
        line = _HEAD.match(self.content)
        if line is None:
            raise ValueError(f"no response: {bytes(self.content[:40])!r}")
        status = int(line[1])
        lines = self.content[line.end() : end].decode("latin-1").split("\r\n")
        fields = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        framed = self._body(end + 4, fields, status, is_head=is_head)
        if framed is None:
            return None
        body, end = framed
        del self.content[:end]
        return Response(status, fields, body)

    def _body(
        self, at: int, fields: dict[str, str], status: int, *, is_head: bool
    ) -> tuple[bytes, int] | None:
        content = self.content
        if is_head or status < 200 or status in (204, 304):
            return b"", at
        end = at + int(fields["content-length"])
        return (bytes(content[at:end]), end) if len(content) >= end else None


@dataclass
class Manners:
    """How a client behaves; as it stands, it is patient and quick."""

    requests: list[Request]
    starts_at: float = 0.0
    is_pipelining: bool = False
    piece: int = 1 << 20  # bytes sent at once
    sends_every: float = 0.0
    reads: int = 1 << 20  # bytes read at once
    reads_every: float = 0.0
    reads_at_most: int = 1 << 30  # bytes
    thinks: float = 0.0
    leaves_after: int = -1  # bytes sent
    leaves: str = "close"
    stays: bool = False  # until the server closes


class Client:
    """One connection to the service."""

    def __init__(
        self,
        name: str,
        network: Network,
        backlog: Backlog,
        manners: Manners,
        judge: Callable[["Client", Request, Response], None],
    ) -> None:
        self.name, self.network, self.world = name, network, network.world
        self.manners = manners
        self.end: RemoteEnd = RemoteEnd(*network.pipes())
        self.requests: list[Request] = []  # of which a byte has been sent
        self.responded = 0
        self.is_closed_by_server = False
        self.has_left = False
        self.excuse = ""  # why requests may remain without a response
        self.has_timed_out = False  # before its request was complete
        self.is_broken = False  # an exception was raised in a call for its connection
        self.is_operator = self.is_hurried = False
        self._taken: list[tuple[float, int]] = []  # when it has read how many bytes
        self._backlog = backlog
        self._judge = judge
        self._parser = Parser()
        self.end.noticed = self._notice
        self.end.holder = self
        self._sender = Agent(self.world, self._send())
        self._reader = Agent(self.world, self._read())

    @property
    def is_done(self) -> bool:
        """Whether nothing more happens."""
        return self._sender.is_done and self._reader.is_done

    def _notice(self) -> None:
        self._sender.wake()
        self._reader.wake()

    def _send(self) -> Steps:
        manners, end, world = self.manners, self.end, self.world
        yield manners.starts_at
        end.connected_at = world.now
        if not self._backlog.connect(end):
            world.note("refused", self.name)
            end.is_reset, self.excuse = True, self.excuse or "refused"
            self._reader.wake()
            return
        world.note("connects", self.name)
        sent = 0
        for number, request in enumerate(manners.requests):
            while not manners.is_pipelining and self.responded < number and not self.is_closed_by_server:
                yield None
            if manners.thinks and number:
                yield manners.thinks
            self.requests.append(request)
            sent = yield from self._send_request(request, sent)
            if not request.sent_at or sent == manners.leaves_after:
                return
        while self.responded < len(manners.requests) and not self.is_closed_by_server:
            yield None
        if not manners.stays and not self.is_closed_by_server:
            self.has_left = True
            end.close()
            self._reader.wake()

    def _send_request(self, request: Request, sent: int) -> Generator[float | None, None, int]:
        """Send a request, and return how many bytes have been sent in all; leave where that is planned."""
        manners, left = self.manners, request.raw
        while left and not self.is_closed_by_server:
            piece = left[: manners.piece]
            if manners.leaves_after >= 0:
                piece = piece[: manners.leaves_after - sent]
            count = self.end.send(piece)
            sent += count
            request.has_begun |= count > 0
            left = left[count:]
            if left and sent != manners.leaves_after:
                yield manners.sends_every if count else None
            elif not left:
                request.sent_at, request.stalled_before = self.world.now, self.world.stalled
                self.world.note("sent", request.name, request.path)
            if sent == manners.leaves_after:
                self._leave()
                break
        return sent

    def _leave(self) -> None:
        self.world.note("leaves", self.name, self.manners.leaves)
        if self.manners.leaves == "stay":
            return
        if self.manners.leaves == "half":
            self.end.shut_down()
            return
        self.has_left = True
        if self.manners.leaves == "close":
            self.end.close()
        else:
            self.end.reset()
        self._reader.wake()

    def _read(self) -> Steps:
        manners, end = self.manners, self.end
        while not self.has_left:
            if manners.reads_at_most <= 0:
                if end.is_reset or end.receives.has_ended:
                    break
                yield None
                continue
            if not end.has_input:
                yield None
                continue
            if manners.reads_every:
                yield manners.reads_every
            data = end.read(manners.reads)
            manners.reads_at_most -= len(data)
            self._taken.append((self.world.now, len(data)))
            self._parser.content += data
            self._take_responses()
            if not data and end.has_input:
                break
        self.is_closed_by_server = not self.has_left
        self._sender.wake()
        if not self.has_left:
            self.world.note("closed", self.name)
            end.close()
            self._require_responses()

    def taken_since(self, moment: float) -> int:
        """Return how many bytes it has read since then."""
        return sum(number for at, number in self._taken if at >= moment)

    def _take_responses(self) -> None:
        while self._parser.content:
            request = self.requests[self.responded] if self.responded < len(self.requests) else None
            is_head = request is not None and request.is_head
            try:
                response = self._parser.next(is_head=is_head)
            except ValueError as ex:
                self.world.fail("each request has one response, in order", f"{self.name}: {ex}")
                return
            if response is None:
                return
            if response.status == 100:
                continue
            if request is None:
                self.world.fail("each request has one response, in order", f"{self.name}: unasked")
                return
            self.responded += 1
            request.status = response.status
            self.world.note("response", request.name, response.status)
            self._judge(self, request, response)
            if response.fields.get("connection") == "close":
                self.excuse = self.excuse or "the server closes"
            self._sender.wake()

    def _require_responses(self) -> None:
        """Fail the run unless there is a response to each request, or the reason why there is none."""
        if self.excuse or self.manners.reads_at_most <= 0:
            return
        for number, request in enumerate(self.requests, 1):
            if not request.has_begun:
                return
            if self.responded < number:
                self.world.fail("each request has one response, in order", f"{request.name}: none")
            if not (request.sent_at and request.is_valid):
                return


def make_request(
    name: str,
    path: str,
    *,
    key: str,
    body: bytes = b"",
    chunk: int = 0,
    expects: bool = False,
    method: str = "",
) -> Request:
    """Return a request; with *chunk*, its body is sent in chunks of so many bytes."""
    method = method or ("POST" if body else "GET")
    lines = [f"{method} {path} HTTP/1.1", "Host: simulated", f"X-Request-Id: {name}"]
    lines.append(f"Authorization: Bearer {key}")
    if expects:
        lines.append("Expect: 100-continue")
    raw = body
    if chunk:
        lines.append("Transfer-Encoding: chunked")
        pieces: list[Any] = [body[at : at + chunk] for at in range(0, len(body), chunk)]
        raw = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    elif body:
        lines.append(f"Content-Length: {len(body)}")
    head = "\r\n".join(lines) + "\r\n\r\n"
    return Request(name, path, key, head.encode("ascii") + raw, body, is_head=method == "HEAD")
