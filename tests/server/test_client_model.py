"""Clients against a model, which knows what each has sent, and computes the rest.

What a client is sent, when its connection ends, what it holds, and who is closed for others.
"""

import json
import socket
from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_model

from stackmgr.admission import ADMISSION
from stackmgr.server.client import DRAIN_SECONDS, RECEIVE_SECONDS
from tests.server.gunicorn_process import head
from tests.server.memory_server import MemoryServer, count_received_bytes

LIMIT, BUDGET, KEEPALIVE = 4, 500, 3
TICK = 1 / 64  # of the scheduler's clock for clients


def app(environ, start):
    """Return what the request is and what is remembered of its key, which is accepted or rejected."""
    place, key = environ[ADMISSION], environ.get("HTTP_AUTHORIZATION", "")
    found = {name: value for name, value in environ.items() if name.startswith("HTTP_")}
    found |= {"path": environ["PATH_INFO"], "size": len(environ["wsgi.input"].read())}
    found |= {"remembered": place.remembered, "queued": place.queued_seconds}
    if key.startswith("known"):
        place.accept(key, found["path"])
    start("401 Unauthorized" if key == "wrong" else "409 Conflict" if found["size"] == 90 else "200 OK", [])
    return [json.dumps(found).encode()]


REQUESTS = st.tuples(
    st.sampled_from(["", "known", "known too", "wrong"]), st.sampled_from([0, 0, 90, 300]),
    st.sampled_from(["", "", "", "close", "bad", "empty line"]), st.sampled_from([1, 1, 1, 0.01, 0.5, 0.9]),
)  # fmt: skip


class Request:
    """A request as bytes, and what the application finds in it."""

    def __init__(self, number, key, size, kind):
        self.id, self.key, self.kind, self.path = f"id {number}" * (number % 2), key, kind, f"/{number}"
        own = {"X-Request-Id": self.id, "Authorization": key, f"X-{number}": "own"}
        own |= {"Connection": "close"} if kind == "close" else {}
        own = {name: value for name, value in own.items() if value}
        line = "BAD" if kind == "bad" else f"POST {self.path} HTTP/1.1"
        fields = (f"{name}: {value}" for name, value in own.items())
        self.head = b"\r\n" * (kind == "empty line") + head(line, *fields, f"Content-Length: {size}")
        self.wire = self.head + b"x" * size * (kind != "bad")
        self.found = {f"HTTP_{name.upper().replace('-', '_')}": value for name, value in own.items()}
        self.found |= {"HTTP_HOST": "x", "path": self.path, "size": size}


class One:
    def __init__(self, wire, deadline):
        self.wire, self.deadline = wire, deadline
        self.state = "silent"  # or receiving, queued, draining, closed
        self.requests = []  # that it sends; the first is received
        self.unsent = self.inbox = b""
        self.queued = 0
        self.expected = []
        self.has_finished = self.is_gone = False

    @property
    def held(self):
        """What is counted of it: of a queued request its body, of one that is received not a complete head."""
        if self.state != "receiving":
            return self.queued if self.state == "queued" else 0
        start = len(self.requests[0].head)
        return len(self.inbox) - start * (len(self.inbox) >= start)


class Clients(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.worker = MemoryServer(app, with_listeners=True, worker_connections=LIMIT, keepalive=KEEPALIVE)
        self.all, self.closable, self.known = [], [], {}
        self.numbers, self.served, self.is_busy = count(1), 0, False

    def teardown(self):
        self.worker.__exit__()

    def tick(self):
        """Let some time pass, until what begins now has deadlines of its own."""
        taken, waits = {one.deadline for one in self.all}, (0, KEEPALIVE, DRAIN_SECONDS, RECEIVE_SECONDS)
        self.worker.now += TICK
        while not taken.isdisjoint(self.worker.now + each for each in waits):
            self.worker.now += TICK
        self.worker.settle()
        self.expire()

    def of(self, *states):
        return [one for one in self.all if one.state in states]

    def enter(self, one, state, seconds=None):
        """Let a client be in *state*; with *seconds* until its deadline, as the last that is closable."""
        self.closable = [each for each in self.closable if each is not one]
        one.state = state
        if seconds is not None:
            self.closable.append(one)
            one.deadline = self.worker.now + seconds

    def count(self):
        holding = [one for one in self.closable if one.state != "silent"]
        while holding and sum(one.held for one in self.all) > BUDGET:
            self.enter(holding.pop(0), "closed")

    def drain(self, one):
        one.inbox = b""
        self.enter(one, "draining", DRAIN_SECONDS)
        if one.has_finished:
            self.enter(one, "closed")

    def fail(self, one, status):
        """Expect an error, with the id of the request if the line has arrived."""
        request = one.requests[0]
        has_id = f"X-Request-Id: {request.id}\r\n".encode() in one.inbox
        one.expected.append((status, request.id if has_id or len(one.inbox) >= len(request.wire) else ""))
        self.drain(one)

    def receive(self, one):
        """Serve what has arrived.  The deadline of a request begins with its first byte."""
        while one.state in ("silent", "receiving") and one.inbox not in (b"", b"\r", b"\r\n"):
            request = one.requests[0]
            if len(one.inbox) < len(request.wire):
                if one.state == "silent":
                    self.enter(one, "receiving", RECEIVE_SECONDS)
                self.count()
                break
            if request.kind == "bad":
                self.fail(one, 400)
                break
            one.inbox, one.now = one.inbox[len(request.wire) :], self.worker.now
            one.response = request.found | {"remembered": self.known.get(request.key)}
            self.enter(one, "queued")
            if self.is_busy:
                one.queued = len(one.inbox) + request.found["size"]
                self.count()
                return
            self.serve(one)
        if one.has_finished and one.state == "receiving":
            self.fail(one, 400)
        elif one.has_finished and one.state == "silent":
            self.enter(one, "closed")

    def serve(self, one):
        request = one.requests.pop(0)
        self.served += 1
        found = one.response | {"queued": self.worker.now - one.now}
        status = 401 if request.key == "wrong" else 409 if found["size"] == 90 else 200
        one.expected.append((status, found))
        if request.key.startswith("known"):
            self.known[request.key] = request.path
        self.enter(one, "silent", KEEPALIVE)
        if request.kind == "close":
            self.drain(one)

    def expire(self):
        for one in self.of("silent", "receiving", "draining"):
            if one.deadline <= self.worker.now:
                self.fail(one, 503) if one.state == "receiving" else self.enter(one, "closed")

    @rule()
    def connect(self):
        self.tick()
        if len(self.all) - len(self.of("closed")) >= LIMIT and self.closable:
            self.enter(self.closable[0], "closed")
        known = set(self.worker.managers.open)
        one = One(self.worker.connected(), 0)
        one.wire.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        [one.wire.served] = self.worker.managers.open - known
        self.all.append(one)
        self.enter(one, "silent", RECEIVE_SECONDS)

    @precondition(lambda self: self.of("silent", "receiving", "queued"))
    @rule(data=st.data(), number=st.sampled_from([1, 4]))
    def send(self, data, number):
        for _ in range(number):
            if found := self.of("queued") or self.of("silent", "receiving"):
                self.send_one(data.draw(st.sampled_from(found)), *data.draw(REQUESTS))

    def send_one(self, one, key, size, kind, part):
        """Send a part of what is begun, or else of another request, or of two."""
        while not one.unsent or (part == 0.9 and len(one.requests) < 2):
            one.requests.append(Request(next(self.numbers), key, size, kind))
            one.unsent += one.requests[-1].wire
        self.tick()
        if one.state in ("silent", "receiving", "queued") and not one.has_finished:
            end = max(1, int(len(one.unsent) * part))
            one.wire.socket.send(one.unsent[:end])
            one.inbox, one.unsent = one.inbox + one.unsent[:end], one.unsent[end:]
            if one.state == "silent" and one.inbox in (b"\r", b"\r\n"):  # which begin nothing
                self.enter(one, "silent", one.deadline - self.worker.now)
            self.receive(one)
            self.worker.settle()

    @precondition(lambda self: self.of("silent", "receiving", "queued", "draining"))
    @rule(data=st.data(), how=st.sampled_from(["reset", "finish"]))
    def end(self, data, how):
        one = data.draw(st.sampled_from(self.of("queued") * 3 + self.of("silent", "receiving", "draining")))
        if not one.has_finished:
            self.tick()
            one.has_finished, one.is_gone = True, how == "reset"
            getattr(one.wire, how)()
            self.worker.settle()
            if how == "reset" and one.state != "queued":
                self.enter(one, "closed")
            self.receive(one)
            if one.state == "draining":
                self.enter(one, "closed")

    @rule(ticks=st.sampled_from([1, 63, 130, 200, 500, 700]))
    def pass_time(self, ticks):
        """Let time pass from one deadline to the next: an error is sent when its own has passed."""
        end = self.worker.now + ticks * TICK
        while times := [one.deadline for one in self.all if self.worker.now < one.deadline <= end]:
            self.worker.pass_time(min(times) - self.worker.now)
            self.expire()
        self.worker.pass_time(end - self.worker.now)

    @precondition(lambda self: not self.is_busy)
    @rule()
    def occupy(self):
        self.worker.queue._free, self.is_busy = 0, True

    @precondition(lambda self: self.is_busy)
    @rule()
    def release(self):
        self.tick()
        self.worker.queue._free, self.is_busy = 1, False
        self.worker.settle()
        for one in self.of("queued"):
            self.enter(one, "closed") if one.is_gone else self.serve(one)
            self.receive(one)

    @invariant()
    def check(self):
        managers, scheduler = self.worker.managers, self.worker.scheduler
        assert scheduler._epoll.poll(0) == []
        waiters = [scheduler._waiters[one.wire.served.fd][0] for one in self.closable]
        assert [scheduler._deadlines[each] for each in waiters] == [one.deadline for one in self.closable]
        assert [one.wire.served for one in self.closable] == list(managers.closable)
        assert {one.wire.served for one in self.all if one.state != "closed"} == managers.open
        assert managers._held == sum(one.held for one in self.all)
        assert self.worker.nr == self.served
        for one in self.all:
            for status, found in one.expected if not one.is_gone else ():
                response = one.wire.response()
                assert response.status == status
                if isinstance(found, dict):
                    assert response.json == found
                else:
                    request_id = response.json["request_id"]
                    assert request_id == found or not (found or request_id.startswith("i"))
            one.expected.clear()
            assert one.is_gone or one.wire.read_all() == b""


def test_clients_behave_as_their_model(monkeypatch):
    count_received_bytes(monkeypatch, BUDGET)
    run_model(Clients, settings=settings(max_examples=100, stateful_step_count=40))
