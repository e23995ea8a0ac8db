"""The turns of a worker's thread, taken one by one: real sockets, no process."""

import os
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from errno import EMFILE
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

from stackmgr.server import connections, loop
from stackmgr.server.body import ChunkedDecoder
from stackmgr.server.connections import HttpConnections
from stackmgr.server.loop import Loop
from tests.server.gunicorn_process import chunked, get
from tests.server.memory_server import MemoryServer


class FakeWorker(MemoryServer):
    """What a loop needs of a worker, with two listeners: the managers' and the operator's."""

    queue_seconds, must_exit, must_reopen = 0.0, False, False

    def __init__(self, cleanup: ExitStack) -> None:
        super().__init__()
        self.cfg.set("worker_connections", 10)
        bound = [cleanup.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        for sock in bound:
            sock.settimeout(0)
        self.sockets = [
            SimpleNamespace(sock=sock, fileno=sock.fileno, getsockname=sock.getsockname) for sock in bound
        ]
        self.admin_port = bound[1].getsockname()[1]
        self.ppid, self.notify = os.getppid(), lambda: None
        self._cleanup = cleanup
        self.loop = Loop(self)
        for listeners in self.loop.listeners:
            listeners.watch()

    def connected(self, data: bytes = b"", *, to_operator: bool = False) -> socket.socket:
        """Return the client of a new connection that has sent *data*."""
        client = self._cleanup.enter_context(
            socket.create_connection(self.sockets[to_operator].getsockname())
        )
        client.settimeout(5)
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


def test_a_request_is_served_and_its_connection_kept(worker):
    client = worker.connected(get("/a") + get("/b"))
    assert client.recv(9999).count(b"HTTP/1.1 200 OK") == 2
    assert len(worker.loop.managers.open) == 1


def test_a_request_to_the_operators_listener_does_not_stand_in_the_queue(worker):
    occupy(worker)
    waiting = worker.connected(get("/"))
    assert worker.connected(get("/live"), to_operator=True).recv(12) == b"HTTP/1.1 200"
    worker.loop.queue._free = 1
    worker.take_turns()
    assert waiting.recv(12) == b"HTTP/1.1 200"


def test_a_client_that_sends_on_while_its_request_waits_wakes_the_worker_once(worker):
    occupy(worker)
    client = worker.connected(get("/a"))
    for _ in range(3):
        client.sendall(get("/b"))
        assert not worker.take_turns()
    worker.loop.queue._free = 1
    worker.take_turns(10)
    assert client.recv(9999).count(b"HTTP/1.1 200 OK") == 4


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


def lack_descriptors(worker: FakeWorker, lacks: Callable[[], bool]) -> None:
    """Let no listener accept while *lacks* says so; no sweep comes by itself."""

    def replaced(listener: Any) -> Any:
        def accept() -> Any:
            if lacks():
                raise OSError(EMFILE, "Too many open files")
            return listener.accept()

        return SimpleNamespace(accept=accept, getsockname=listener.getsockname)

    for listeners in worker.loop.listeners:
        listeners._sockets = {fd: replaced(listener) for fd, listener in listeners._sockets.items()}
    worker.loop._next_sweep = inf


@pytest.mark.parametrize("frees", ["a closed connection", "a sweep"])
def test_after_a_lack_of_descriptors_both_listeners_accept_again(worker, monkeypatch, frees):
    worker.connected()
    [conn] = worker.loop.managers.open
    lacks = [True]
    lack_descriptors(worker, lambda: bool(lacks))
    monkeypatch.setattr(HttpConnections, "close_longest_parked", lambda _: None)
    clients = [worker.connected(get("/"), to_operator=each) for each in (True, False)]
    assert [len(each.paused) for each in worker.loop.listeners] == [1, 1]
    lacks.clear()
    if frees == "a sweep":
        worker.loop._next_sweep = 0.0
    else:
        worker.loop.managers.close(conn)
    worker.take_turns()
    assert [client.recv(12) for client in clients] == [b"HTTP/1.1 200"] * 2


def test_an_operators_connection_is_accepted_at_once_in_place_of_a_managers(worker):
    expendable = worker.connected()
    [conn] = worker.loop.managers.open
    lack_descriptors(worker, lambda: conn in worker.loop.managers.open)
    assert worker.connected(get("/live"), to_operator=True).recv(12) == b"HTTP/1.1 200"
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
