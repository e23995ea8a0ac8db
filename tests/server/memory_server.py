"""The protocol and the application of `app.py` without a process, a socket or a clock."""

import io
import re
from types import SimpleNamespace

from gunicorn.config import Config

from stackmgr.admission import ADMISSION
from stackmgr.server.connection import addresses
from stackmgr.server.handler import RequestHandler, log_failure, log_rejection
from stackmgr.server.protocol import CLOSED, DRAINING, WRITING, Protocol
from stackmgr.server.queue import Place, RequestQueue
from stackmgr.server.request import ReceivedRequest
from tests.server.app import app
from tests.server.gunicorn_process import get
from tests.support.http_wire import RawClient

_CONFIG = Config()
_DATE = re.compile(rb"Date: [^\r]*")
# An error of the server's own: its id may be that of the request, or of half of it.
_ERROR = re.compile(rb"(HTTP/1\.1 [0-9]{3} )[^\r]*\r\n\r\nConnection: close\r\nContent-Type.*", re.DOTALL)


class Log:
    """Keeps what is logged."""

    def __init__(self):
        self.lines = []

    def error(self, text, *values, **_):
        self.lines.append(text % values)

    info = warning = error


class MemoryServer:
    """Each `connect` makes a connection, served as by a worker that reads and writes at once."""

    port = 8000

    def __init__(self, wsgi=app, keepalive=3):
        _CONFIG.set("keepalive", keepalive)
        self.requests = 0
        self.alive, self.cfg, self.log, self.wsgi = True, _CONFIG, Log(), wsgi
        self.queue = RequestQueue(1)
        self.handler = RequestHandler(self, self.queue)

    def count_request(self):
        self.requests += 1

    def connect(self, *pieces):
        client = MemoryClient(self)
        client.send(*pieces)
        return client

    def request(self, data):
        """Send bytes on a new connection and return the first response."""
        return self.connect(data).response("HEAD" if data.startswith(b"HEAD ") else "GET")

    def sent_for(self, *pieces):
        """Return what a client is sent, without what differs each time, and the state after its end."""
        client = self.connect(*pieces)
        client.finish()
        return _ERROR.sub(rb"\1", _DATE.sub(b"", client.read_all())), client.protocol.state.name


class MemoryClient(RawClient):
    """The client of one connection."""

    def __init__(self, server):
        self._server = server
        self._reader = io.BytesIO()
        self.protocol = protocol = Protocol(server.handler.limits)
        place = Place(server.queue)
        environ = {**addresses(("127.0.0.1", 1), ("127.0.0.1", server.port)), ADMISSION: place}
        self._conn = SimpleNamespace(environ=environ, place=place, protocol=protocol)

    def send(self, *pieces):
        for piece in pieces:
            if piece and self.protocol.state is not CLOSED:
                self._receive(piece)

    def finish(self):
        self._receive(b"")
        if self.protocol.state is DRAINING:
            self._receive(b"")

    def expire(self):
        """Let the deadline pass."""
        self.protocol.expire()
        self._read_what_is_sent()

    def close(self):
        pass

    def is_ended(self):
        return self._reader.read(1) == b"" and self.protocol.state in (DRAINING, CLOSED)

    def read_all(self):
        return self._reader.read()

    def _receive(self, data):
        protocol = self.protocol
        protocol.receive(data)
        while protocol.may_continue:
            found = protocol.proceed()
            if isinstance(found, ReceivedRequest):
                found = self._respond(found)
            if found is not None:
                log_rejection(self._server.log, "memory", found)
            self._read_what_is_sent()

    def _respond(self, request):
        try:
            self._server.handler.respond(self._conn, request)
        except BaseException as exc:  # noqa: BLE001 - as in `Loop`
            log_failure(self._server.log, exc)
            return self.protocol.fail()

    def _read_what_is_sent(self):
        outbox, at = self.protocol.outbox, self._reader.tell()
        self._reader.seek(0, io.SEEK_END)
        self._reader.write(outbox)
        self._reader.seek(at)
        if self.protocol.state is WRITING:
            self.protocol.sent(len(outbox))


def cuts(data):
    """Yield *data* cut in two at every place, or if it is long at some, and if it is short byte by byte."""
    step = max(1, len(data) // 150) if len(data) > 2000 else 1
    for at in range(1, len(data), step):
        yield data[:at], data[at:]
    if len(data) < 2000:
        yield [data[at : at + 1] for at in range(len(data))]


def head_of(length):
    """Return a head of so many bytes."""
    fields = [f"X-{number}: {'a' * 8000}" for number in range(8)]
    return get("/", *fields, "X: " + "a" * (length - len(get("/", *fields, "X: "))))
