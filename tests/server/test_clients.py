"""The clients of a worker: deadlines, turns, who makes room for whom, and what ends none of them."""

import gc
import re
import socket
import tracemalloc
from contextlib import ExitStack
from errno import EBADF, ECONNABORTED, EMFILE, ENETDOWN
from itertools import count, pairwise
from types import SimpleNamespace

import pytest

from stackmgr.server import client, clients, queue
from stackmgr.server import worker as turns
from stackmgr.server.client import Client
from stackmgr.server.clients import Clients
from stackmgr.server.request import ChunkedDecoder
from stackmgr.server.worker import Worker
from tests.server.app import RAISED, EndOfThread
from tests.server.gunicorn_process import chunked, get, post
from tests.server.memory_server import OPERATOR, UNIX, MemoryServer
from tests.support.memory import types_in_cycles

CLIENT_BYTES = 6_000  # a silent client, and the test's own end of it
OK, BUSY = b"HTTP/1.1 200", b"HTTP/1.1 503"


@pytest.fixture
def make():
    with ExitStack() as cleanup:
        yield lambda **settings: cleanup.enter_context(MemoryServer(with_listeners=True, **settings))


@pytest.fixture
def worker(make):
    return make()


def occupy(worker):
    worker.queue._free = 0


def release(worker):
    worker.queue._free = 1
    worker.settle()


def start_of(found):
    return found.read_all()[:12]


def count_received_bytes(monkeypatch):
    monkeypatch.setattr(clients, "BUFFER_BUDGET", 100)
    received = property(lambda self: len(self._inbox) + (len(self._request.body) if self._request else 0))
    monkeypatch.setattr(Client, "size", received)


def one_step_in_a_turn(monkeypatch):
    for name in ("READ_SECONDS", "STRANGER_SECONDS"):
        monkeypatch.setattr(turns, name, -1.0)


@pytest.mark.parametrize("sent", [b"", get("/")[:9]])
def test_a_deadline_spares_bytes_that_arrived(memory, sent):
    found = memory.connect(sent)
    found.socket.send(get("/")[len(sent) :])
    memory.now += 11
    epoll = memory.scheduler._epoll  # whose event comes after the deadline
    memory.scheduler._epoll = SimpleNamespace(poll=lambda *_: [], modify=epoll.modify, close=epoll.close)
    memory.settle()
    assert start_of(found) == OK


def test_a_client_must_read_in_time(memory, monkeypatch):
    unread = 4 * client.SEND_PROGRESS
    monkeypatch.setattr(client, "ioctl", lambda *_: unread.to_bytes(4, "little"))
    found = memory.connect()
    found.receive = lambda: None
    found.send(get("/big?9000000"))
    memory.settle()
    for size, is_open in ((client.SEND_PROGRESS, True), (client.SEND_PROGRESS - 1, False)):
        unread -= size
        memory.pass_time(client.SEND_SECONDS - 1)
        assert not found.is_closed
        memory.pass_time(2)
        assert found.is_closed != is_open


def test_a_slow_reader_gets_all(memory):
    found = memory.connect()
    found.receive = lambda: None
    found.send(get("/big?2000000") + get("/"))
    received = b""
    while received.count(OK) < 2:
        memory.pass_time(1)
        received += found.socket.recv(100_000)
    assert len(received) > 2_000_000


@pytest.mark.parametrize("leave", ["reset", "close"])
@pytest.mark.parametrize("to", [0, UNIX])
def test_a_client_that_left_is_not_served(worker, leave, to):
    occupy(worker)
    getattr(worker.connected(get("/"), to=to), leave)()
    worker.settle()
    assert worker.scheduler._epoll.poll(0) == []  # whoever has left wakes the thread once
    half_closed = worker.connected(get("/"))
    half_closed.finish()
    release(worker)
    # An end of input on TCP may be that of a client that waits for its response.
    assert worker.nr == 1 + (leave == "close" and to != UNIX)
    assert start_of(half_closed) == OK
    assert (worker.open, worker.scheduler.watched) == (0, {})


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
    worker, found = make(worker_connections=50), []
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
    release(worker)
    for one in found:
        one.reset()
    worker.settle()
    assert (worker.open, worker.managers._held) == (0, 0)


def test_a_closed_clients_request_is_not_served(worker, monkeypatch):
    count_received_bytes(monkeypatch)
    one_step_in_a_turn(monkeypatch)
    found, other = worker.connected(chunked("/echo", b"x" * 90, end=b"")), worker.connected(b"G")
    found.socket.send(b"1\r\nx\r\n" * 1000 + b"0\r\n\r\n")
    worker.take_turns(2)
    other.send(b"G" * 20)
    assert (worker.nr, found.is_ended()) == (0, True)


def test_a_client_closed_in_a_pause_holds_nothing(worker, monkeypatch):
    count_received_bytes(monkeypatch)
    one_step_in_a_turn(monkeypatch)
    found, other = worker.connected(chunked("/echo", b"x" * 90, end=b"")), worker.connected(b"G")
    found.socket.send(b"1\r\nx\r\n" * 1000)
    worker.take_turns(2)
    other.send(b"G" * 20)
    assert found.is_ended()
    managers = worker.managers
    assert (len(managers.open), len(managers.closable), managers._held) == (1, 1, 21)


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


def test_a_key_is_known_in_any_spelling(worker):
    for spelling in ("Bearer a-1", "bearer a-1", "BEARER a-2", "Bearer  a-2", "Bearer   a-3", "Bearer a-3 "):
        worker.connected(get("/", f"Authorization: {spelling}"))
    assert set(worker.queue._known) == {hash("a-1"), hash("a-2"), hash("a-3")}


def test_a_request_too_many_is_rejected(worker, monkeypatch):
    monkeypatch.setattr(queue, "LIMIT", 2)
    monkeypatch.setattr(queue, "randrange", lambda size: size - 1)
    occupy(worker)
    waiting = [worker.connected(get("/")) for _ in range(2)]
    assert start_of(worker.connected(get("/"))) == BUSY
    release(worker)
    assert [start_of(found) for found in waiting] == [OK] * 2


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


@pytest.mark.parametrize("is_overdue", [False, True])
def test_a_turn_starts_and_rejects_for_a_bounded_time(worker, is_overdue):
    wsgi = worker.wsgi

    def slow(*call):
        worker.now += 2 * turns.REJECT_SECONDS
        return wsgi(*call)

    worker.wsgi, worker.queue._seconds = slow, 1.0
    occupy(worker)
    for _ in range(4):
        worker.connected(get("/"))
    worker.queue._free = not is_overdue
    worker.now += is_overdue
    for served in range(1, 5):
        worker.take_turns()
        assert worker.nr == served


def test_an_operator_does_not_queue(worker):
    occupy(worker)
    waiting = worker.connected(get("/"))
    assert start_of(worker.connected(get("/live"), to=OPERATOR)) == OK
    release(worker)
    assert start_of(waiting) == OK


def test_an_exception_frees_its_place(worker):
    for _ in range(2):
        assert start_of(worker.connected(get("/raise"))) == b"HTTP/1.1 500"
    assert start_of(worker.connected(get("/"))) == OK


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
    assert sum("EndOfThread" in line for line in worker.log.lines) == 4
    assert worker.queue._free == 1
    found.close()
    worker.pass_time(client.RECEIVE_SECONDS)
    assert worker.open == 0


def test_no_error_after_a_begun_response(memory, monkeypatch):
    def failing(*_):
        raise EndOfThread

    monkeypatch.setattr(Client, "_wait", failing)
    found = memory.connect(get("/big?9000000"))
    sent = found.read_all()
    assert (sent.count(b"HTTP/1.1"), found.is_ended()) == (1, True)
    assert len(sent) < 9_000_000


def test_a_worker_without_a_master_stops(worker):
    worker.ppid = 1 << 30
    worker.pass_time(1.0)
    assert not worker.alive
    assert not worker.turn()


def test_a_stop_waits_for_no_idle_connection(make):
    worker = make(keepalive=60)
    idle, late, part = worker.connected(), worker.connected(get("/")), worker.connected(b"G")
    late.read_all()
    waiting, silent = (socket.create_connection(worker.sockets[0].getsockname(), 5) for _ in range(2))
    waiting.send(get("/"))
    worker.alive = False
    worker.settle()
    assert waiting.recv(12) == OK  # which no turn had accepted
    waiting.close()
    worker.pass_time(turns.STOP_LINGER - 0.1)
    late.send(get("/"))
    assert b"Connection: close" in late.read_all()
    late.close()
    worker.pass_time(0.2)
    assert not idle.is_ended()
    assert worker.turn()
    part.send(get("/")[1:])
    assert start_of(part) == OK
    part.close()
    assert not worker.turn()  # which ends the idle ones with the process
    silent.close()


def test_a_stop_accepts_in_turns(make):
    worker = make(worker_connections=100)
    pending = [socket.create_connection(worker.sockets[0].getsockname()) for _ in range(40)]
    worker.alive, found = False, [0]
    while worker.managers._listeners:
        worker.take_turns()
        worker.now += clients.SHARE_SECONDS / 2
        found.append(worker.open)
    assert max(after - before for before, after in pairwise(found)) == clients.ACCEPTS
    assert found[-1] == 40
    for each in pending:
        each.close()


def test_a_stop_waits_for_the_operators_requests_only(worker):
    idle, part = worker.connected(to=OPERATOR), worker.connected(b"G", to=OPERATOR)
    worker.alive = False
    worker.settle()
    worker.pass_time(turns.STOP_LINGER + 0.1)
    assert (idle.is_ended(), worker.turn()) == (False, True)
    part.send(get("/live")[1:])
    assert start_of(part) == OK
    part.close()
    assert not worker.turn()


def test_a_limit_of_0_is_the_largest(make):
    worker = make(limit_request_line=0, limit_request_fields=0, limit_request_field_size=0)
    assert start_of(worker.connected(get("/"))) == OK


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


def test_accepted_keys_come_before_strangers(worker, monkeypatch):
    served, wsgi = [], worker.wsgi
    worker.wsgi = lambda environ, start: served.append(environ["PATH_INFO"]) or wsgi(environ, start)
    monkeypatch.setattr(turns, "STRANGER_SECONDS", -1.0)
    known, *strangers = worker.connected(get("/")), *[worker.connected() for _ in range(4)]
    for each in strangers:
        each.socket.send(get("/stranger"))
    known.socket.send(get("/known"))
    worker.take_turns(3)
    assert served[:3] == ["/", "/known", "/stranger"]
    worker.settle()
    assert len(served) == 6


def test_a_write_counts_as_one(worker):
    found, wsgi = [], worker.wsgi
    worker.wsgi = lambda *call: found.append(worker.queue._writing) or wsgi(*call)
    for method in (b"GET", b"HEAD", b"POST", b"PATCH"):
        worker.connected(get("/").replace(b"GET", method))
    assert found == [0, 0, 1, 1]


def failing_accept(works, errno, lacks):
    def accepted(self, listener):
        if lacks:
            raise OSError(errno, "no")
        yield from works(self, listener)

    return accepted


@pytest.mark.parametrize("errno", [EMFILE, EBADF])
def test_listeners_recover_from_errors(make, monkeypatch, errno):
    lacks = [True]
    monkeypatch.setattr(Clients, "_accepted", failing_accept(Clients._accepted, errno, lacks))
    worker = make()
    found = [worker.connected(get("/"), to=each) for each in (OPERATOR, 0, UNIX)]
    assert worker.open == 0
    assert not worker.has_ready  # an immediate retry would only use the processor
    lacks.clear()
    worker.pass_time(1.0)
    assert [start_of(each) for each in found] == [OK] * 3


@pytest.mark.parametrize(("errno", "is_given_up"), [(EMFILE, True), (EBADF, False)])
def test_managers_make_room_for_operators(worker, monkeypatch, errno, is_given_up):
    expendable = worker.connected()
    lacks = [True]
    works = failing_accept(Clients._accepted, errno, lacks)

    def accepted(self, listener):
        if not worker.managers.open:
            lacks.clear()
        return works(self, listener)

    monkeypatch.setattr(Clients, "_accepted", accepted)
    found = worker.connected(get("/live"), to=OPERATOR)
    assert start_of(found) == (OK if is_given_up else b"")
    assert expendable.is_ended() == is_given_up


@pytest.mark.parametrize("errno", [ECONNABORTED, ENETDOWN])
@pytest.mark.parametrize("is_alive", [True, False])
def test_a_failed_accept_delays_no_other(worker, monkeypatch, errno, is_alive):
    accept, errors = socket.socket.accept, iter(range(3))

    def failing(listener):
        if next(errors, None) is not None:
            raise OSError(errno, "of this connection")
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", failing)
    waiting = socket.create_connection(worker.sockets[0].getsockname())
    waiting.send(get("/"))
    worker.alive = is_alive
    worker.settle()
    assert waiting.recv(12) == OK
    waiting.close()


@pytest.mark.parametrize(("workers", "more"), [(1, 4), (2, 1)])
def test_workers_share_waiting_connections(make, workers, more):
    worker = make(workers=workers)

    def accepted():
        """Connect four clients, count the connections after each pause, and close them."""
        found = [socket.create_connection(worker.sockets[0].getsockname()) for _ in range(4)]
        for _ in found:
            worker.settle()
            yield worker.open
            worker.pass_time(clients.SHARE_SECONDS)
        for each in found:
            each.close()
        worker.settle()

    shared = [min(more + paused, 4) for paused in range(4)]
    assert list(accepted()) == shared
    assert list(accepted()) == [4] * 4  # as many were open before
    worker.pass_time(1)
    assert list(accepted()) == shared


def test_heads_pass_clients_that_left_in_chunks(worker, monkeypatch):
    feed = ChunkedDecoder.feed

    def timed(decoder, data):
        size = len(data)
        try:
            return feed(decoder, data)
        finally:
            worker.now += (size - len(data)) / 6e6  # a microsecond for each chunk

    monkeypatch.setattr(ChunkedDecoder, "feed", timed)
    found, attackers = ([worker.connected() for _ in range(number)] for number in (6, 4))
    for attacker in attackers:
        attacker.socket.sendall(chunked("/echo", *[b"x"] * 9000)[:60_000])
        attacker.socket.close()
    worker.take_turns(1)
    for each in found:
        each.socket.send(get("/"))
    worker.take_turns(3)
    assert [each.socket.recv(12) for each in found] == [OK] * 6
    worker.settle()
    assert worker.open == 6


def test_unread_clients_hide_no_event(worker, monkeypatch):
    one_step_in_a_turn(monkeypatch)
    attackers = [worker.connected() for _ in range(6)]
    for attacker in attackers:
        attacker.socket.sendall(chunked("/echo", *[b"x"] * 3000))
    worker.take_turns(12)
    assert len(worker.bodies) == 6
    assert worker.scheduler._epoll.poll(0) == []


def test_connections_take_turns(worker, monkeypatch):
    one_step_in_a_turn(monkeypatch)
    served, wsgi = [], worker.wsgi
    worker.wsgi = lambda environ, start: served.append(environ["PATH_INFO"]) or wsgi(environ, start)
    found = [worker.connected(get("/")) for _ in range(3)]
    served.clear()
    for number, each in enumerate(found):
        each.socket.send(get(f"/{number}") * 3)
    worker.settle()
    assert sorted(served[:3]) == sorted(served[3:6]) == sorted(served[6:]) == ["/0", "/1", "/2"]


def test_bodies_come_after_heads(worker, monkeypatch):
    one_step_in_a_turn(monkeypatch)  # and one of a body
    attackers, found = [worker.connected() for _ in range(6)], worker.connected()
    for attacker in attackers[:3]:
        attacker.socket.sendall(chunked("/echo", *[b"x"] * 3000, end=b""))
    for attacker in attackers[3:]:
        attacker.socket.send(post("/echo", b"x" * 200_000)[:150_000])
    worker.take_turns(8)
    assert len(worker.bodies) > 3
    found.socket.send(get("/a"))
    worker.take_turns(3)
    assert found.socket.recv(12) == OK
    for attacker, rest in zip(attackers, [b"0\r\n\r\n"] * 3 + [b"x" * 200_000] * 3, strict=True):
        attacker.send(rest)
    assert [start_of(attacker) for attacker in attackers] == [OK] * 6


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


def test_a_full_collection_waits_for_the_end_of_a_flood(worker, monkeypatch):
    collected = []
    monkeypatch.setattr(
        turns,
        "gc",
        SimpleNamespace(get_count=lambda: (0, 0, 11), collect=lambda: collected.append(1), freeze=int),
    )
    monkeypatch.setattr(turns, "COLLECTED_CLIENTS", 1)
    found = [worker.connected() for _ in range(2)]
    collected.clear()
    worker.pass_time(1)
    assert not collected
    found[0].close()
    worker.pass_time(1)
    assert collected
