"""The clients of a worker: deadlines, turns, who makes room for whom, and what ends none of them."""

import gc
import re
import socket
import tracemalloc
from itertools import count
from types import SimpleNamespace

import pytest

from stackmgr.server import client, clients, queue
from stackmgr.server.client import Client
from stackmgr.server.clients import Clients
from stackmgr.server.worker import Worker
from tests.server.app import RAISED, EndOfThread
from tests.server.gunicorn_process import chunked, get, post
from tests.server.memory_server import BUSY, OK, OPERATOR, UNIX, occupy, one_step_a_turn, release, start_of
from tests.server.memory_server import count_received_bytes as count_bytes
from tests.support.memory import types_in_cycles

CLIENT_BYTES = 6_000  # a silent client, and the test's own end of it


@pytest.mark.parametrize("sent", [b"", get("/")[:9]])
def test_a_deadline_spares_bytes_that_arrived(memory, sent):
    found = memory.connect(sent)
    found.socket.send(get("/")[len(sent) :])
    memory.now += 11
    epoll = memory.scheduler._epoll  # whose event comes after the deadline
    memory.scheduler._epoll = SimpleNamespace(poll=lambda *_: [], modify=epoll.modify, close=epoll.close)
    memory.settle()
    assert start_of(found) == OK


@pytest.mark.parametrize(("sent", "seconds", "status"), [
    (b"GET /", 10, BUSY), (post("/echo", b"x" * 90)[:-50], 10, BUSY), (chunked("/echo", end=b"ff\r\n"), 10, BUSY),
    (get("/", "Connection: close"), 2, OK),
])  # fmt: skip
def test_a_trickle_moves_no_deadline(memory, sent, seconds, status):
    found = memory.connect(sent)
    for _ in range(seconds + 1):
        memory.pass_time(1 - 1 / 64)
        found.send(b"x")
    assert (start_of(found), found.is_closed) == (status, status == OK)


def test_a_client_must_read_in_time(memory, monkeypatch):
    unread = 200_000
    monkeypatch.setattr(client, "ioctl", lambda *_: unread.to_bytes(4, "little"))
    found = memory.connect()
    found.receive = lambda: None
    found.send(get("/big?9000000"))
    memory.settle()
    for size, is_open in ((65_536, True), (65_535, False)):
        unread -= size
        memory.pass_time(29)
        assert not found.is_closed
        memory.pass_time(2)
        assert found.is_closed != is_open


def test_a_slow_reader_gets_all(memory):
    found = memory.connect()
    found.receive = lambda: None
    found.send(get("/big?2000000"))
    received = 0
    while found.served._outbox or not received:
        memory.pass_time(1)
        received += len(found.socket.recv(100_000))
    assert received > 1_000_000
    assert not found.is_closed  # only from now on it is idle
    assert (memory.managers._holding, memory.managers._held) == ({}, 0)


@pytest.mark.parametrize("sent", [b"", b"GET /", chunked("/echo", b"x" * 9)[:-5], get("/big?9000000")])
def test_a_reset_is_not_logged(worker, sent):
    found = worker.connected()
    found.socket.send(sent)
    worker.settle()
    found.reset()
    worker.settle()
    assert (worker.open, worker.log.lines) == (0, [])


def test_a_client_that_left_a_unix_socket_is_not_served(worker):
    occupy(worker)
    worker.connected(get("/"), to=UNIX).close()
    worker.settle()
    assert worker.scheduler._epoll.poll(0) == []  # whoever has left wakes the thread once
    release(worker)
    assert (worker.nr, worker.open, worker.scheduler.watched) == (0, 0, {})


UNREAD = "X-Request-Id: " + "\xff" * 16_300  # which an Error object repeats as 98 kB
FIELDS = [f"X-{number}: {'a' * 16_000}" for number in range(2)]


@pytest.mark.parametrize("sent", [
    b"", get("/", *FIELDS), get("/", *FIELDS)[:-1], get("/", UNREAD, "Connection: close"),
    post("/echo", b"x" * 200_000, *FIELDS)[:-1], post("/echo", b"x" * 90, *[f"{n}:" for n in range(90)])[:-1],
    chunked("/echo", b"x" * 30_000, end=b""), b"BAD\r\n" + UNREAD.encode("latin-1") + b"\r\n\r\n",
    post("/echo", b"x" * 60_000, *FIELDS) * 2,
])  # fmt: skip
@pytest.mark.parametrize("is_busy", [False, True])
def test_what_clients_hold_is_counted(make, sent, is_busy):
    worker, found = make(worker_connections=50, limit_request_field_size=16_384), []
    if is_busy:
        occupy(worker)
    tracemalloc.start()
    for _ in range(21):
        one = worker.connect()
        one.receive = worker.settle
        one.served.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        one.send(sent)
        if not found:  # what the first one makes, all use
            gc.collect()
            before = tracemalloc.get_traced_memory()[0]
        found.append(one)
    gc.collect()
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert taken <= sum(each.served.held for each in found[1:]) + 20 * CLIENT_BYTES
    assert worker.managers._held == sum(each.served.held for each in found)
    assert all(each.served.held == 0 or each.served.held > client.STACK_BYTES for each in found)
    for one in found:
        one.reset()
    worker.settle()
    release(worker)
    assert (worker.open, worker.managers._held) == (0, 0)


CHUNKS = b"1\r\nx\r\n" * 1000


@pytest.mark.parametrize(("begun", "rest"), [(b"", CHUNKS), (b"", CHUNKS + b"0\r\n\r\n"), (b"0\r\nX:", b"y")])
def test_a_client_closed_in_a_pause_is_not_served_and_holds_nothing(worker, monkeypatch, begun, rest):
    count_bytes(monkeypatch, 100)
    one_step_a_turn(monkeypatch)
    found, other = worker.connected(chunked("/echo", b"x" * 90, end=begun)), worker.connected(b"G")
    found.socket.send(rest)
    worker.take_turns()
    other.socket.send(b"G" * 20)
    worker.settle()
    assert (worker.nr, found.is_ended(), worker.log.lines) == (0, True, [])
    managers = worker.managers
    assert (len(managers.open), len(managers.closable), managers._held) == (1, 1, 21)


def test_the_longest_silent_makes_room_and_a_queued_client_none(make):
    occupy(worker := make(worker_connections=2))
    first, second = worker.connected(), worker.connected()
    first.send(post("/", b"xy")[:-1])
    worker.connected()
    assert (first.is_ended(), second.is_ended()) == (False, True)
    first.send(b"y")
    worker.connected()
    worker.connected()
    release(worker)
    assert start_of(first) == OK


def test_the_first_to_hold_bytes_make_room(worker, monkeypatch):
    count_bytes(monkeypatch, 100)
    _, *found = [worker.connected(part) for part in (b"", b"G" * 50, b"", b"G" * 20, b"G" * 9)]
    found[0].send(b"G")
    operator = worker.connected(b"G" * 20, to=OPERATOR)
    operator.send(b"G")
    assert (len(worker.managers.open), found[0].is_ended()) == (4, True)
    operator.send(b"G" * 200)
    assert (len(worker.managers.open), len(worker.operators.open)) == (2, 1)


@pytest.mark.parametrize("leaves", [False, True])
def test_bytes_at_the_deadline_start_one_greenlet(worker, leaves):
    occupy(worker)
    found, epoll = worker.connected(), worker.scheduler._epoll
    found.socket.send(get("/a"))
    worker.now += 11
    worker.scheduler._epoll = SimpleNamespace(poll=lambda *_: [], modify=epoll.modify)
    worker.take_turns(2)
    worker.scheduler._epoll = epoll
    assert worker.queue.length == 1
    if leaves:
        found.reset()
    else:
        found.socket.send(get("/b"))
    worker.settle()
    assert epoll.poll(0) == []
    assert worker.queue.length == 1
    release(worker)
    assert worker.nr == 2 * (not leaves)
    assert (worker.queue._free, worker.queue._running) == (1, {})


def test_a_unix_socket_has_no_address(worker):
    occupy(worker)
    worker.connected()
    found = worker.connected(get("/environ"), to=UNIX)
    assert (len(worker.managers.open), worker.queue.length) == (2, 1)
    release(worker)
    environ = found.response().json
    found = [environ[name] for name in ("REMOTE_ADDR", "SERVER_NAME", "SERVER_PORT")]
    assert found == ["", "localhost", "0"]
    worker.connected(b"BAD\r\n\r\n", to=UNIX)
    assert worker.log.lines == ["Rejected a request from unix: request line"]


def test_a_key_is_known_in_any_spelling(worker):
    for spelling in ("Bearer a-1", "bearer a-1", "BEARER a-2", "Bearer  a-2", "Bearer   a-3", "Bearer a-3 "):
        worker.connected(get("/", f"Authorization: {spelling}"))
    assert set(worker.queue._known) == {hash("a-1"), hash("a-2"), hash("a-3")}


def test_no_error_after_a_begun_response(memory, monkeypatch):
    def failing(*_):
        raise EndOfThread

    monkeypatch.setattr(Client, "_wait", failing)
    found = memory.connect(get("/big?9000000"))
    sent = found.read_all()
    assert (sent.count(b"HTTP/1.1"), found.is_ended()) == (1, True)
    assert len(sent) < 9_000_000


def test_a_request_is_charged_from_its_first_byte_to_the_park(worker, monkeypatch):
    charged = []

    def slow(works):
        def call(*arguments):
            worker.now += 1.0
            return works(*arguments)

        return call

    worker.wsgi = slow(worker.wsgi)
    for name in ("_take", "_send"):
        monkeypatch.setattr(Client, name, slow(getattr(Client, name)))
    monkeypatch.setattr(worker.queue, "charge", lambda *given: charged.append(given[1:]))
    found = worker.connected(get("/"))
    found.send(get("/a") + get("/b"))
    assert charged == [(1003.0, 3.0), (1006.0, 3.0), (1008.0, 2.0)]
    malformed = worker.connected(b"G")
    malformed.send(b"\n")
    assert sum(seconds for _, seconds in charged[3:]) == worker.now - 1008.0


@pytest.mark.parametrize("sent", [
    b"G", b"BAD\r\n\r\n", post("/reject", b"x" * 90_000), chunked("/echo", b"x", end=b"zz\r\n"), get("/big?3000000"),
    *(get(path) for path in ("/", *RAISED, "/bad-header", "/late", "/never-starts", "/change-of-mind")),
])  # fmt: skip
@pytest.mark.parametrize("leave", ["reset", "close", "stay"])
def test_no_client_leaves_a_cycle(worker, sent, leave):
    def serve():
        found = worker.connected(sent)
        getattr(found, leave, lambda: worker.pass_time(12))()
        worker.pass_time(client.DRAIN_SECONDS + 0.1)

    assert types_in_cycles(serve) == {}


@pytest.mark.parametrize(("limit", "value"), [("LIMIT", 2), ("LIMIT_BYTES", 5000)])
def test_a_request_too_many_is_rejected(worker, monkeypatch, limit, value):
    assert 2 * queue.LIMIT_BYTES == clients.BUFFER_BUDGET
    monkeypatch.setattr(queue, limit, value)
    monkeypatch.setattr(queue, "randint", lambda low, _: low)
    occupy(worker)
    found = [worker.connected(post("/", b"x" * 1000)) for _ in range(3)]
    assert sorted(start_of(each) for each in found) == [b"", b"", BUSY]
    if limit == "LIMIT_BYTES":  # one may displace two; a head counts twice
        found.append(worker.connected(get("/", f"X-A: {'x' * 1500}")))
    release(worker)
    assert sorted(start_of(each) for each in found) == [b"", OK, *([BUSY] * 2 if found[3:] else [OK])]


def test_overdue_requests_are_rejected(worker, monkeypatch):
    spread = count()
    monkeypatch.setattr(queue, "randint", lambda low, high: low + next(spread) % (high + 1))
    worker.queue_seconds = worker.queue._seconds = 1.5
    occupy(worker)
    rejected = [worker.connected(get("/a")) for _ in range(5)]
    worker.pass_time(1.0)
    waiting = worker.connected(get("/b"))
    worker.pass_time(0.4)
    assert worker.queue.length == 6
    worker.pass_time(0.2)
    responses = [found.read_all() for found in rejected]
    assert {response[:12] for response in responses} == {BUSY}
    retries = [int(re.search(rb"Retry-After: ([0-9]+)", response)[1]) for response in responses]
    assert sorted(retries) == [2, 3, 4, 5, 6]
    release(worker)
    rejected[0].send(get("/again"))
    assert [start_of(found) for found in (waiting, rejected[0])] == [OK] * 2


@pytest.mark.filterwarnings("ignore:unclosed")  # a socket whose connection could not be made
@pytest.mark.parametrize(("owner", "method"), [
    (Client, "__init__"), (Client, "_take"), (Client, "_send"), (Clients, "park"), (Clients, "_accepted"),
    (Worker, "_look"),
])  # fmt: skip
def test_failures_end_no_worker(worker, monkeypatch, owner, method):
    works, failures = getattr(owner, method), iter(range(4))

    def failing(*arguments):
        if next(failures, None) is not None:
            raise EndOfThread
        return works(*arguments)

    monkeypatch.setattr(owner, method, failing)
    for _ in range(8):
        found = worker.connected(get("/"))
        worker.pass_time(1.0)
    assert start_of(worker.connected(get("/"))) == OK
    assert sum(f"EndOfThread at {__file__}:" in line for line in worker.log.lines) == 4
    assert worker.queue._free == 1
    found.close()
    worker.pass_time(client.RECEIVE_SECONDS)
    assert worker.open == 0
