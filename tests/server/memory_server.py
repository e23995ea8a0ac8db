"""A worker without a process: real sockets, its turns taken one by one, and a clock that tests move."""

import io
import os
import re
import socket
import struct
import sys
from contextlib import ExitStack, suppress
from functools import partialmethod
from types import SimpleNamespace

from gunicorn.config import Config

from stackmgr import scheduler
from stackmgr.server import client, clients, worker
from tests.server.app import app
from tests.server.gunicorn_process import get
from tests.support import greenlets
from tests.support.http_wire import RawClient

MANAGERS, OPERATOR, UNIX, OTHER = range(4)  # the listeners; operators have one port
OK, BUSY = b"HTTP/1.1 200", b"HTTP/1.1 503"
PEER = "2001:db8::1"  # of `connect`

_DATE = re.compile(rb"Date: [^\r]*")
# An error of the server's own: its id may be that of the request, or of half of it.
_ERROR = re.compile(
    rb"(HTTP/1\.1 [0-9]{3} )[^\r]*\r\nServer: gunicorn\r\n\r\nConnection: close\r\nContent-Type.*", re.DOTALL
)


class Log:
    def __init__(self):
        self.lines, self.levels, self.fields = [], [], {}  # the fields of the last line

    def error(self, text, *values, level="error", extra=None):
        self.lines.append(text % values)
        self.levels.append(level)
        self.fields = extra and extra["fields"]

    info, warning = partialmethod(error, level="info"), partialmethod(error, level="warning")


class MemoryServer(worker.Worker):
    """A worker; its time is `now`, in seconds.

    `connect` makes a connection without a listener; `connected` one to a listener, of which it has four.
    """

    port = 8000

    def __init__(self, wsgi=app, *, with_listeners=False, **settings):
        self._cleanup = ExitStack()
        self.now = 1000.0
        for module in (scheduler, client, clients, worker):
            self._cleanup.callback(setattr, module, "monotonic", module.monotonic)
            module.monotonic = lambda: self.now
        self.cfg = Config()
        for name, value in {"keepalive": 3, "threads": 1, "worker_connections": 10, **settings}.items():
            self.cfg.set(name, value)
        self.nr, self.max_requests = 0, sys.maxsize
        self.alive, self.log, self.wsgi = True, Log(), wsgi
        self.ppid, self.notify = os.getppid(), lambda: None
        self.sockets = self._listen() if with_listeners else []
        self.prepare()
        self._cleanup.callback(greenlets.close, self.scheduler)

    def _listen(self):
        bound = [self._cleanup.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        bound.append(self._cleanup.enter_context(socket.socket(socket.AF_UNIX)))
        bound[UNIX].bind("")  # which chooses an address
        bound[UNIX].listen()
        self.admin_port = bound[OPERATOR].getsockname()[1]
        bound.append(self._cleanup.enter_context(socket.create_server(("127.0.0.2", self.admin_port))))
        for sock in bound:
            sock.settimeout(0)
        return [SimpleNamespace(sock=one, fileno=one.fileno, getsockname=one.getsockname) for one in bound]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for each in (self.managers, self.operators):
            for one in list(each.open):
                each.close(one)
        self.settle()
        self._cleanup.close()

    def take_turns(self, number=1):
        left = iter([True] * number)

        def turn():
            return next(left, False) and (self.turn() or True)

        scheduler = self.scheduler
        scheduler.run(turn, lambda: self.idle_seconds() if scheduler.until_idle else 0.0, self.is_busy)

    def settle(self):
        quiet = 0  # turns: after an accept nothing is ready, but the client may have an event
        for _ in range(20_000):
            self.take_turns()
            quiet = 0 if self.has_ready else quiet + 1
            if quiet == 1 + bool(self.sockets):
                return
        raise AssertionError("the worker spins: it always has something to do at once")

    @property
    def has_ready(self):
        return self.idle_seconds() == 0.0 or bool(self.scheduler.until_idle)

    def pass_time(self, seconds):
        self.now += seconds
        self.settle()

    @property
    def open(self):
        return len(self.managers.open) + len(self.operators.open)

    def connect(self, *pieces):
        ours, theirs = socket.socketpair()
        one = client.Client(theirs, (PEER, 1, 0, 0), ("::1", self.port, 0, 0), self.managers, self)
        self.managers.open.add(one)
        self.managers.park(one)
        found = MemoryClient(self, self._cleanup.enter_context(ours), one)
        found.send(*pieces)
        return found

    def connected(self, data=b"", *, to=MANAGERS):
        listener = self.sockets[to].sock
        ours = self._cleanup.enter_context(socket.socket(listener.family))
        ours.settimeout(5)
        ours.connect(listener.getsockname())
        found = MemoryClient(self, ours, None)
        found.send(data)
        self.settle()
        return found

    def request(self, data):
        with self.connect(data) as found:
            return found.response("HEAD" if data.startswith(b"HEAD ") else "GET")

    def sent_for(self, *pieces):
        """Return what a client is sent, without what differs each time, and whether its connection is closed."""
        with self.connect(*pieces) as found:
            found.finish()
            return _ERROR.sub(rb"\1", _DATE.sub(b"", found.read_all())), found.is_closed


class MemoryClient(RawClient):
    """The client of one connection; *served* is the server's side of it, if known."""

    def __init__(self, server, ours, served):
        self._server, self.socket, self.served = server, ours, served
        self._reader = io.BytesIO()  # what has been received
        self._has_ended = False
        ours.setblocking(False)

    def send(self, *pieces):
        for piece in pieces:
            rest = memoryview(piece)
            while rest:
                try:
                    rest = rest[self.socket.send(rest) :]
                except BlockingIOError:
                    pass
                except OSError:
                    return
                self.receive()

    def finish(self):
        with suppress(OSError):
            super().finish()
        self.receive()

    def reset(self):
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def receive(self):
        at = self._reader.tell()
        self._reader.seek(0, io.SEEK_END)
        size = -1
        while size != self._reader.tell():
            size = self._reader.tell()
            self._server.settle()
            with suppress(BlockingIOError, ConnectionError):
                while data := self.socket.recv(1_000_000):
                    self._reader.write(data)
                self._has_ended = True
        self._reader.seek(at)

    def response(self, method="GET"):
        self.receive()
        return super().response(method)

    def read_all(self):
        self.receive()
        return self._reader.read()

    def close(self):
        self.socket.close()
        self._server.settle()

    def is_ended(self):
        self.receive()
        return self._reader.read(1) == b"" and self._has_ended

    @property
    def is_closed(self):
        return self.served not in self._server.managers.open


def cuts(data):
    """Yield *data* cut in two at every place, or if it is long at some, and if it is short byte by byte."""
    step = max(1, len(data) // 150) if len(data) > 2000 else 1
    for at in range(1, len(data), step):
        yield data[:at], data[at:]
    if len(data) < 2000:
        yield [data[at : at + 1] for at in range(len(data))]


def head_of(length):
    fields = [f"X-{number}: {'a' * 8000}" for number in range(8)]
    return get("/", *fields, "X: " + "a" * (length - len(get("/", *fields, "X: "))))


def occupy(worker):
    worker.queue._free = 0


def release(worker):
    worker.queue._free = 1
    worker.settle()


def start_of(found):
    return found.read_all()[:12]


def one_step_a_turn(monkeypatch):
    for name in ("READ_SECONDS", "STRANGER_SECONDS"):
        monkeypatch.setattr(worker, name, -1.0)


def count_received_bytes(monkeypatch, budget):
    monkeypatch.setattr(clients, "BUFFER_BUDGET", budget)
    received = property(lambda self: len(self._inbox) + (len(self._request.body) if self._request else 0))
    monkeypatch.setattr(client.Client, "size", received)
