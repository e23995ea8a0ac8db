"""One client: one greenlet serves its connection from top to bottom.

A client is *parked* without a greenlet while it is silent; its first byte starts one.  Where the
greenlet would block it is *suspended* until its socket has an event or a deadline passes; it is then
*ready*, in a lane, until its turn comes (`Worker.turn`).  A complete request is *queued* (`queue.py`),
runs the application, and its response is sent.  Then the client is parked again.

- What the client makes the worker hold is in three fields of `Client`, not in frames.  It is counted
  at each suspension.  Over budget the client is closed for others, so after it, it may have left.
- Only a complete request is queued.  From then on its client is not closed for others.
- The client is charged for the thread from its first byte on, also if no request gets complete.
- An error of the server's own is the last response: what follows it may not be a request.
"""

import socket
from contextlib import suppress
from fcntl import ioctl
from logging import Logger
from sys import byteorder, getsizeof
from termios import TIOCOUTQ
from time import monotonic
from typing import Protocol, TypeAlias
from uuid import uuid4

from greenlet import getcurrent, greenlet
from gunicorn.config import Config

from stackmgr.admission import ADMISSION
from stackmgr.errors import IncompleteRequest, RequestTimedOut, ServiceError
from stackmgr.limits import BODY_LIMIT_BYTES, REQUEST_SECONDS
from stackmgr.scheduler import HUNG_UP, READABLE, WRITABLE, Lane, Scheduler
from stackmgr.server.queue import Place, RequestQueue
from stackmgr.server.request import ChunkedDecoder, HeadLimits, ReceivedRequest, id_and_method, section_end
from stackmgr.server.response import error_response

# Deadlines begin with what they bound: a trickle does not move them.
# For a request, then 503; for the first byte.  nginx: 60 s for a head, Apache: 20 to 40 s, Go: none.
RECEIVE_SECONDS = float(REQUEST_SECONDS)
SEND_SECONDS, SEND_PROGRESS = 30.0, 65_536  # for each so many bytes; nginx: 60 s between two writes
DRAIN_SECONDS = 2.0  # Apache: 2 s, nginx: 5 s between two reads and 30 s in all
DRAIN_LIMIT = 33_554_432  # bytes: a client busy sending 10 MB must still be able to read its 413
# Read at once.  Most requests fit in the first; nginx: 1 KiB of a head, Apache: 8 KiB.
HEAD_BYTES, BODY_BYTES = 4_096, 65_536
STACK_BYTES = 8_192  # of a suspended greenlet: its frames, and its part of the C stack

Address: TypeAlias = "tuple[str, int] | str"  # of TCP, or the path of a Unix socket
_ADDRESSES = "REMOTE_ADDR", "REMOTE_PORT", "SERVER_NAME", "SERVER_PORT"


class ClientLeft(Exception):
    """The connection must be closed: the client has left or has its last response."""


class Audience(Protocol):
    """The part of `Clients` that a client uses; the docstrings are there."""

    idle_seconds: float
    is_queued: bool

    def park(self, client: "Client") -> None: ...
    def hold(self, client: "Client") -> None: ...
    def count(self, client: "Client", size: int) -> None: ...
    def end_wait(self, client: "Client") -> None: ...
    def close(self, client: "Client") -> None: ...


class Service(Protocol):
    """The part of `Worker` that a client uses; the docstrings are there."""

    lanes: tuple[Lane, Lane, Lane]
    heads: Lane
    strangers: Lane
    bodies: Lane
    limits: HeadLimits
    log: Logger
    queue: RequestQueue[greenlet]
    scheduler: Scheduler
    cfg: Config

    def run_application(self, client: "Client", request: ReceivedRequest) -> tuple[bytes, bool]: ...
    def note_failure(self, exc: BaseException) -> None: ...


class Client:
    """A client and its connection, one of the `Clients` of the `Worker`."""

    def __init__(
        self, sock: socket.socket, peer: Address, server: Address, clients: Audience, worker: Service
    ) -> None:
        sock.setblocking(False)
        self.sock, self.fd = sock, sock.fileno()
        self.place = Place(worker.queue.accept)
        # A Unix socket has a port that no listener has and no Host can name.
        addresses = (*peer[:2], *server[:2]) if isinstance(peer, tuple) else ("", "", "localhost", 0)
        self.environ = {ADMISSION: self.place, **dict(zip(_ADDRESSES, map(str, addresses), strict=True))}
        self.held = 0  # its size when that was last counted
        self.is_open = True
        self.idle_until = monotonic() + RECEIVE_SECONDS
        self._clients, self._worker = clients, worker
        # All that a client makes the worker hold: no frame may keep another reference while suspended.
        self._inbox = bytearray()
        self._request: ReceivedRequest | None = None
        self._outbox = b""

    @property
    def size(self) -> int:
        """The bytes that the client makes the worker hold while it is suspended."""
        request = self._request.head_size + len(self._request.body) if self._request else 0
        return STACK_BYTES + getsizeof(self._inbox) + request + len(self._outbox)

    @property
    def lane(self) -> Lane:
        """Where it is ready to read a head, or to send."""
        return self._worker.heads if self.place.is_accepted else self._worker.strangers

    def clear(self) -> None:
        self._inbox.clear()
        self._request, self._outbox = None, b""

    def serve(self, is_ready: bool) -> None:
        """Serve requests until the client is silent or leaves; not *is_ready*: it timed out."""
        try:
            self._clients.end_wait(self)
            if self._take(HEAD_BYTES) or is_ready:
                # RFC 9112 section 2.2: an empty line may come before a request.  Alone it begins none.
                while len(self._inbox) > 2 or bytes(self._inbox) not in (b"", b"\r", b"\r\n"):
                    must_close = self._respond()
                    self._send()
                    if must_close:
                        self._drain()
                    self.idle_until = monotonic() + self._clients.idle_seconds
                    self._yield()
                    if self._inbox:  # a pipeline: after the requests of others
                        self._worker.scheduler.pause(self.lane)
                self._clients.park(self)
                return
        except (ClientLeft, IncompleteRequest):
            pass
        except BaseException as exc:  # noqa: BLE001 - it is logged, and ends no worker
            self._worker.note_failure(exc)
        self._yield()
        self._clients.close(self)

    def _yield(self) -> None:
        """Let another request run, and charge this client for the thread since its last charge."""
        queue = self._worker.queue
        queue.charge(self.place, monotonic(), self._worker.scheduler.take_seconds())
        queue.leave(self.place)

    def _respond(self) -> bool:
        """Receive a request; leave its response, or an error, to be sent.  Return whether it is the last."""
        must_close = True
        try:
            request = self._receive()
            if self._clients.is_queued:  # `/live` waits for no manager's request
                self._wait_in_queue(request)
            self._outbox, must_close = self._worker.run_application(self, request)
        except ServiceError as ex:
            self._reject(ex, ex.at or ex.message)
        except ClientLeft:
            raise
        except BaseException as exc:  # noqa: BLE001 - the unexpected is a 500
            self._worker.note_failure(exc)
            self._reject(ServiceError(), "the service failed")
        self._request = None
        return must_close

    def _receive(self) -> ReceivedRequest:
        searched, inbox = 0, self._inbox
        deadline = monotonic() + RECEIVE_SECONDS
        while not (end := section_end(inbox, searched)):
            searched = len(inbox)
            self._read(HEAD_BYTES, self.lane, deadline)
        request = self._request = ReceivedRequest(bytes(inbox[:end]), self._worker.limits)
        del inbox[:end]  # not before: the error that takes its place repeats its id
        self._receive_body(request, deadline)
        self._clients.end_wait(self)
        return request

    def _receive_body(self, request: ReceivedRequest, deadline: float) -> None:
        inbox, lane, length = self._inbox, self._worker.bodies, request.length
        if length is not None and length > BODY_LIMIT_BYTES:
            request.must_close = True  # the application rejects what it announces
            return
        if request.expects_continue and (length is None or len(inbox) < length):
            self._outbox = b"HTTP/1.1 100 Continue\r\n\r\n"
            self._send()
        if length is not None:
            while len(inbox) < length:
                self._read(BODY_BYTES, lane, deadline)
            if length:
                request.body = bytes(inbox[:length])
                del inbox[:length]
            return
        decoder, is_complete = ChunkedDecoder(request), False
        request.body = decoder.content
        while not is_complete:
            self._worker.scheduler.pause(lane)  # chunks are decoded after the heads of others
            if not self.is_open:
                raise ClientLeft
            size = len(inbox)
            is_complete = decoder.feed(inbox)
            if not is_complete and len(inbox) == size:
                self._read(BODY_BYTES, lane, deadline)
        # The next request starts after what is not collected.
        request.must_close |= len(decoder.content) > BODY_LIMIT_BYTES

    def _read(self, size: int, lane: Lane, deadline: float) -> None:
        """Wait for bytes, which a deadline ends only if none have arrived."""
        is_ready = self._wait(READABLE, lane, deadline)
        if not self._take(size) and not is_ready:
            raise RequestTimedOut

    def _take(self, size: int) -> bool:
        try:
            data = self.sock.recv(size)
        except BlockingIOError:
            return False
        except OSError:
            raise ClientLeft from None
        if not data:
            raise IncompleteRequest
        self._inbox += data
        return True

    def _wait(self, events: int, lane: Lane, deadline: float) -> bool:
        """Suspend until *events*; return whether there were any by *deadline*."""
        self._yield()
        self._clients.hold(self)
        seconds = deadline - monotonic()
        is_ready = self.is_open and self._worker.scheduler.wait_for(self.fd, events, seconds, lane)
        if not self.is_open:  # it has been closed to make room
            raise ClientLeft
        return is_ready

    def _wait_in_queue(self, request: ReceivedRequest) -> None:
        """Wait in the queue.  The application may then reject: see `Admission.retry_after`."""
        worker, scheduler, place = self._worker, self._worker.scheduler, self.place
        key = request.environ.get("HTTP_AUTHORIZATION", "").rpartition(" ")[2]
        writes = request.method not in ("GET", "HEAD")
        place.queued_seconds, place.size, now = 0.0, request.head_size + len(request.body), monotonic()
        if rejected := worker.queue.add(place, key, getcurrent(), now, writes=writes):
            scheduler.until_idle.extend(rejected)
        elif worker.queue.length == 1 and not any(worker.lanes) and worker.queue.take() is not None:
            return  # it is alone: a pause would only delay it
        self._clients.count(self, self.size)
        scheduler.pause()
        place.queued_seconds = monotonic() - now
        if scheduler.watched.get(self.fd, HUNG_UP) & HUNG_UP:  # reset; who only ends its side reads
            raise ClientLeft

    def _send(self) -> None:
        """Send what is to be sent as long as the client reads it. Raises ClientLeft."""
        rest, unread, deadline = memoryview(self._outbox), 0, 0.0
        while True:
            try:
                sent = self.sock.send(rest)
            except BlockingIOError:
                sent = 0
            except OSError:
                raise ClientLeft from None
            if not (rest := rest[sent:]):
                break
            if monotonic() >= deadline:
                # What the client's system has not acknowledged: the kernel holds a part of it.
                held = int.from_bytes(ioctl(self.fd, TIOCOUTQ, bytes(4)), byteorder)
                before, unread = unread, len(rest) + held
                if deadline and unread > before - SEND_PROGRESS:
                    raise ClientLeft
                deadline = monotonic() + SEND_SECONDS
            self._wait(WRITABLE, self.lane, deadline)
        self._outbox = b""
        self._clients.end_wait(self)

    def _drain(self) -> None:
        """Discard further bytes: a reset would lose the client's response.  Always raises."""
        self._inbox.clear()
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_WR)
        deadline, left = monotonic() + DRAIN_SECONDS, DRAIN_LIMIT
        while left > 0 and self._wait(READABLE, self._worker.bodies, deadline):
            self._take(BODY_BYTES)
            left -= len(self._inbox)
            self._inbox.clear()
        raise ClientLeft

    def _reject(self, error: ServiceError, why: str) -> None:
        """Log an error of the server's own, and leave a response with its Error object to be sent."""
        if (request := self._request) is not None:
            request_id, method = request.environ.get("HTTP_X_REQUEST_ID") or str(uuid4()), request.method
        else:
            request_id, method = id_and_method(bytes(self._inbox), self._worker.limits.field)
        self._inbox.clear()
        fields = {"request_id": request_id, "status": error.status, "code": error.code}
        fields |= {"reason": error.reason} if error.reason else {}
        peer, log = self.environ["REMOTE_ADDR"] or "unix", self._worker.log
        log.warning("Rejected a request from %s: %s", peer, why, extra={"fields": fields})
        self._outbox = error_response(error, request_id, method)
