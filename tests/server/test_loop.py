"""The turns of a worker's thread, taken one by one: real sockets, no process."""

import json
import os
import re
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from errno import EMFILE
from itertools import count
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

from stackmgr.server import connections, loop, queue
from stackmgr.server.body import ChunkedDecoder
from stackmgr.server.connection import ClientConnection
from stackmgr.server.connections import HttpConnections
from stackmgr.server.listeners import Listeners
from stackmgr.server.loop import Loop
from tests.server.app import EndOfThread
from tests.server.gunicorn_process import chunked, get
from tests.server.memory_server import MemoryServer

MANAGERS, OPERATOR, UNIX = range(3)  # the listeners of a worker


class FakeWorker(MemoryServer):
    """What a loop needs of a worker, with the listeners of managers, of the operator, and on a unix socket."""

    queue_seconds, must_exit, must_reopen = 0.0, False, False

    def __init__(self, cleanup: ExitStack) -> None:
        super().__init__()
        self.cfg.set("worker_connections", 10)
        bound = [cleanup.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        bound.append(cleanup.enter_context(socket.socket(socket.AF_UNIX)))
        bound[2].bind("")  # which chooses an address
        bound[2].listen()
        for sock in bound:
            sock.settimeout(0)
        self.sockets = [
            SimpleNamespace(sock=sock, fileno=sock.fileno, getsockname=sock.getsockname) for sock in bound
        ]
        self.admin_port = bound[1].getsockname()[1]
        self.ppid, self.notify = os.getppid(), lambda: None
        self._cleanup = cleanup
        self.loop = Loop(self)

    def connected(self, data: bytes = b"", *, to: int = MANAGERS) -> socket.socket:
        """Return the client of a new connection that has sent *data*."""
        listener = self.sockets[to].sock
        client: socket.socket = self._cleanup.enter_context(socket.socket(listener.family))
        client.settimeout(5)
        client.connect(listener.getsockname())
        client.sendall(data)
        self.take_turns()
        return client

    def take_turns(self, number: int = 4) -> bool:
        """Take turns without waiting; return whether something was left to be done at once."""
        for _ in range(number):
            self.loop.scheduler._handle_ready(0.0)
            self.loop.turn()
            for listeners in self.loop.listeners:
                listeners.pauses_until = 0.0
        self.loop.scheduler._handle_ready(0.0)
        return self.loop.managers.has_ready


@pytest.fixture
def worker() -> Iterator[FakeWorker]:
    with ExitStack() as cleanup:
        worker = FakeWorker(cleanup)
        yield worker
        for each in (worker.loop.managers, worker.loop.operators):
            for conn in list(each.open):
                each.close(conn)


def occupy(worker: FakeWorker) -> None:
    """Let no request start."""
    worker.loop.queue._free = 0


def test_of_more_connections_than_the_setting_the_longest_idle_is_closed(worker):
    clients = [worker.connected(get("/")) for _ in range(11)]
    assert len(worker.loop.managers.open) == 10
    assert b"keep-alive" in clients[0].recv(9999)
    assert clients[0].recv(1) == b""


def test_a_unix_socket_is_for_managers_and_has_no_address(worker):
    occupy(worker)
    worker.connected()
    client = worker.connected(get("/environ"), to=UNIX)
    assert (len(worker.loop.managers.open), worker.loop.queue.waiting) == (2, 1)
    worker.loop.queue._free = 1
    worker.take_turns()
    environ = json.loads(client.recv(9999).partition(b"\r\n\r\n")[2])
    found = [environ[name] for name in ("REMOTE_ADDR", "SERVER_NAME", "SERVER_PORT")]
    assert found == ["", "localhost", "0"]


def test_a_key_is_the_same_however_its_credential_is_spelled(worker):
    for spelling in ("Bearer a-1", "bearer a-1", "BEARER a-2", "Bearer  a-2", "Bearer   a-3", "Bearer a-3 "):
        worker.connected(get("/", f"Authorization: {spelling}"))
    assert set(worker.loop.queue._managers) == {hash("a-1"), hash("a-2"), hash("a-3")}


def test_a_request_too_many_is_rejected_at_once(worker, monkeypatch):
    monkeypatch.setattr(queue, "LIMIT", 2)
    monkeypatch.setattr(queue, "randrange", lambda number: number - 1)
    occupy(worker)
    waiting = [worker.connected(get("/")) for _ in range(2)]
    assert worker.connected(get("/")).recv(12) == b"HTTP/1.1 503"
    worker.loop.queue._free = 1
    worker.take_turns()
    assert [client.recv(12) for client in waiting] == [b"HTTP/1.1 200"] * 2


def test_requests_that_have_waited_too_long_are_rejected_together_and_logged_once(worker, monkeypatch):
    now, spread = [1000.0], count()
    monkeypatch.setattr(loop, "monotonic", lambda: now[0])
    monkeypatch.setattr(queue, "randint", lambda low, high: low + next(spread) % (high + 1))
    worker.queue_seconds = worker.loop.queue._seconds = 1.5
    occupy(worker)
    rejected = [worker.connected(get("/a")) for _ in range(5)]
    now[0] += 1.0
    waiting = worker.connected(get("/b"))
    now[0] += 0.4
    worker.take_turns()
    assert worker.loop.queue.waiting == 6
    now[0] += 0.2
    worker.take_turns()
    responses = [client.recv(9999) for client in rejected]
    assert {response[:12] for response in responses} == {b"HTTP/1.1 503"}
    retries = [int(re.search(rb"Retry-After: ([0-9]+)", response)[1]) for response in responses]
    assert sorted(retries) == [2, 3, 4, 5, 6]
    worker.loop.queue._free = 1
    rejected[0].sendall(get("/again"))
    worker.take_turns()
    assert [client.recv(12) for client in (waiting, rejected[0])] == [b"HTTP/1.1 200"] * 2
    for _ in range(4):
        now[0] += 1.0
        worker.take_turns()
    assert worker.log.lines == ["Responded 503 to what could not be started within 1.5 s; requests: 5"]


def test_a_request_to_the_operators_listener_does_not_stand_in_the_queue(worker):
    occupy(worker)
    waiting = worker.connected(get("/"))
    assert worker.connected(get("/live"), to=OPERATOR).recv(12) == b"HTTP/1.1 200"
    worker.loop.queue._free = 1
    worker.take_turns()
    assert waiting.recv(12) == b"HTTP/1.1 200"


def test_a_client_that_sends_on_while_its_request_waits_wakes_the_worker_once(worker):
    occupy(worker)
    client = worker.connected(get("/a"))
    for _ in range(3):
        client.sendall(get("/b"))
        assert not worker.take_turns()
        assert list(worker.loop.managers.open.values()) == [0]
    worker.loop.queue._free = 1
    worker.take_turns(10)
    assert client.recv(9999).count(b"HTTP/1.1 200 OK") == 4
    client.sendall(get("/c"))
    worker.take_turns()
    assert client.recv(12) == b"HTTP/1.1 200"


def test_an_exception_in_the_application_is_a_response_and_lets_the_next_request_start(worker):
    for _ in range(2):
        assert worker.connected(get("/raise")).recv(12) == b"HTTP/1.1 500"
    assert worker.connected(get("/")).recv(12) == b"HTTP/1.1 200"


@pytest.mark.filterwarnings("ignore:unclosed")  # a socket whose connection could not be made
@pytest.mark.parametrize(("owner", "method"), [
    (ClientConnection, "__init__"), (ClientConnection, "flush"), (HttpConnections, "park"),
    (HttpConnections, "add"), (Listeners, "_accept_one"),
])  # fmt: skip
def test_failures_outside_the_application_end_no_worker(worker, monkeypatch, owner, method):
    works, failures = getattr(owner, method), iter(range(4))

    def failing(*arguments: Any) -> Any:
        if next(failures, None) is not None:
            raise EndOfThread
        return works(*arguments)

    monkeypatch.setattr(owner, method, failing)
    for _ in range(8):
        client = worker.connected(get("/"))
        worker.loop._next_sweep = 0.0
    worker.take_turns()
    assert client.recv(12) == b"HTTP/1.1 200"
    assert sum("EndOfThread" in line for line in worker.log.lines) == 4


def test_a_client_that_has_reset_its_connection_is_not_served(worker):
    occupy(worker)
    client = worker.connected(get("/"))
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    worker.take_turns()
    worker.loop.queue._free = 1
    worker.take_turns()
    assert (worker.requests, dict(worker.loop.managers.open)) == (0, {})


def test_a_worker_whose_master_has_died_stops(worker):
    assert worker.loop.turn()
    worker.ppid = 1 << 30
    worker.loop._next_sweep = 0.0
    assert not worker.loop.turn()
    assert not worker.alive


def test_above_the_budget_the_next_turn_sweeps_again(worker, monkeypatch):
    clients = [worker.connected(get("/")[:20]) for _ in range(5)]
    monkeypatch.setattr(connections, "BUFFER_BUDGET", 25)
    monkeypatch.setattr(connections, "STEP_SECONDS", -1.0)  # each sweep closes one
    worker.loop._next_sweep = 0.0
    for left in (4, 3, 2, 1, 1):
        worker.loop.turn()
        assert len(worker.loop.managers.open) == left
    assert clients[-1].fileno() > 0


def test_a_request_is_charged_with_the_time_for_which_it_held_the_thread(worker, monkeypatch):
    left = []
    monkeypatch.setattr(worker.loop.queue, "leave", lambda *charged: left.append(charged))
    worker.connected(get("/"))
    _, now, seconds = left[-1]
    assert 0 < seconds < now


def lack_descriptors(worker: FakeWorker, lacks: Callable[[], bool]) -> None:
    """Let no listener accept while *lacks* says so; no sweep comes by itself."""

    def replaced(listener: Any) -> Any:
        def accept() -> Any:
            if lacks():
                raise OSError(EMFILE, "Too many open files")
            return listener.accept()

        return SimpleNamespace(accept=accept, getsockname=listener.getsockname, close=listener.close)

    for listeners in worker.loop.listeners:
        listeners._sockets = {fd: replaced(listener) for fd, listener in listeners._sockets.items()}
    worker.loop._next_sweep = inf


@pytest.mark.parametrize("frees", ["a closed connection", "a sweep"])
def test_after_a_lack_of_descriptors_every_listener_accepts_again(worker, monkeypatch, frees):
    worker.connected()
    [conn] = worker.loop.managers.open
    lacks = [True]
    lack_descriptors(worker, lambda: bool(lacks))
    monkeypatch.setattr(HttpConnections, "close_longest_parked", lambda _: None)
    clients = [worker.connected(get("/"), to=each) for each in (OPERATOR, MANAGERS, UNIX)]
    assert [len(each.paused) for each in worker.loop.listeners] == [1, 2]
    lacks.clear()
    if frees == "a sweep":
        worker.loop._next_sweep = 0.0
    else:
        worker.loop.managers.close(conn)
    worker.take_turns()
    assert [client.recv(12) for client in clients] == [b"HTTP/1.1 200"] * 3


def test_a_listener_without_descriptors_is_not_watched_again_once_it_is_closed(worker):
    lack_descriptors(worker, lambda: True)
    worker.connected(to=OPERATOR)
    [listeners] = [each for each in worker.loop.listeners if each.paused]
    listeners.close()
    listeners.resume()
    assert not listeners.paused


def test_an_operators_connection_is_accepted_at_once_in_place_of_a_managers(worker):
    expendable = worker.connected()
    [conn] = worker.loop.managers.open
    lack_descriptors(worker, lambda: conn in worker.loop.managers.open)
    assert worker.connected(get("/live"), to=OPERATOR).recv(12) == b"HTTP/1.1 200"
    assert expendable.recv(1) == b""


def test_heads_are_parsed_in_time_beside_clients_that_have_left_within_their_chunks(worker, monkeypatch):
    now, feed = [1000.0], ChunkedDecoder.feed

    def timed(decoder: ChunkedDecoder, data: bytearray) -> bool:
        size = len(data)
        try:
            return feed(decoder, data)
        finally:
            now[0] += (size - len(data)) / 6e6  # a microsecond for each chunk

    monkeypatch.setattr(ChunkedDecoder, "feed", timed)
    monkeypatch.setattr(loop, "monotonic", lambda: now[0])
    clients, attackers = ([worker.connected() for _ in range(number)] for number in (6, 4))
    for attacker in attackers:
        attacker.sendall(chunked("/echo", *[b"x"] * 9000))
        attacker.close()
    worker.take_turns(1)
    for client in clients:
        client.sendall(get("/"))
    worker.take_turns(1)
    assert [client.recv(12) for client in clients] == [b"HTTP/1.1 200"] * 6
    worker.take_turns(40)
    assert len(worker.loop.managers.open) == 6


def test_clients_that_wait_to_be_read_hide_no_event_of_others(worker, monkeypatch):
    monkeypatch.setattr(loop, "PARSE_SECONDS", -1.0)  # one step in each turn
    attackers = [worker.connected() for _ in range(6)]
    for attacker in attackers:
        attacker.sendall(chunked("/echo", *[b"x"] * 3000))
    worker.take_turns(12)
    assert len(worker.loop.managers.receiving) == 6
    assert len(worker.loop.scheduler._epoll.poll(0)) <= 1


def test_each_connection_has_its_turn_before_another_has_its_second(worker, monkeypatch):
    monkeypatch.setattr(loop, "PARSE_SECONDS", -1.0)  # one step in each turn
    served, wsgi = [], worker.wsgi
    worker.wsgi = lambda environ, start: served.append(environ["PATH_INFO"]) or wsgi(environ, start)
    clients = [worker.connected() for _ in range(3)]
    for number, client in enumerate(clients):
        client.sendall(get(f"/{number}") * 3)
    worker.take_turns(20)
    assert sorted(served[:3]) == sorted(served[3:6]) == sorted(served[6:]) == ["/0", "/1", "/2"]


def test_chunks_are_decoded_after_the_requests_of_other_connections(worker, monkeypatch):
    monkeypatch.setattr(loop, "PARSE_SECONDS", -1.0)  # one step in each turn, and one of a body
    attackers, client = [worker.connected() for _ in range(6)], worker.connected()
    for attacker in attackers:
        attacker.sendall(chunked("/echo", *[b"x"] * 3000, end=b""))
    worker.take_turns(7)
    assert len(worker.loop.managers.receiving) > 3
    client.sendall(get("/a"))
    worker.take_turns(2)
    assert client.recv(12) == b"HTTP/1.1 200"
    for attacker in attackers:
        attacker.sendall(b"0\r\n\r\n")
    worker.take_turns(200)
    assert [attacker.recv(12) for attacker in attackers] == [b"HTTP/1.1 200"] * 6
