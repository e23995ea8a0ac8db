"""The connections of a worker: which wait for what, until when, what ends them, and who makes room for whom."""

import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from select import EPOLLERR, EPOLLHUP
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest

from stackmgr.scheduler import READABLE, Scheduler
from stackmgr.server import connection, connections, listeners
from stackmgr.server.connection import WRITE_PROGRESS, ClientConnection
from stackmgr.server.connections import HttpConnections
from stackmgr.server.listeners import Listeners
from stackmgr.server.protocol import CLOSED, DRAINING, IDLE, READING, WRITING, Protocol
from stackmgr.server.queue import Place, RequestQueue
from stackmgr.server.request import HeadLimits

QUEUE: RequestQueue[Any] = RequestQueue(1)
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"

Make = Callable[[], tuple[ClientConnection, socket.socket]]


def connection_of(sock: socket.socket, peer: Any = "", server: Any = "") -> ClientConnection:
    return ClientConnection(sock, peer, server, Place(QUEUE), Protocol(HeadLimits(4094, 100, 8190)))


def http_connections(scheduler: Scheduler, limit: int = 1000) -> HttpConnections:
    return HttpConnections(scheduler, limit, 60.0, lambda: None)


@pytest.fixture
def all_of_them() -> HttpConnections:
    return http_connections(Scheduler())


@pytest.fixture
def make(all_of_them: HttpConnections) -> Iterator[Make]:
    """Return a function that adds a connection, and returns it and its client."""
    with ExitStack() as cleanup:

        def make() -> tuple[ClientConnection, socket.socket]:
            server, client = (cleanup.enter_context(sock) for sock in socket.socketpair())
            conn = connection_of(server)
            all_of_them.add(conn)
            return conn, client

        yield make


def step(all_of_them: HttpConnections, conn: ClientConnection, events: int = READABLE) -> Any:
    """Take the step of a turn in which a connection has *events*."""
    all_of_them._notice(conn, events)
    assert all_of_them.take_next(all_of_them.ready or all_of_them.receiving) is conn
    found = conn.step()
    conn.flush()
    all_of_them.park(conn)
    return found


def respond(conn: ClientConnection, data: bytes, *, must_close: bool = False) -> None:
    conn.protocol.start()
    conn.protocol.respond(data, must_close=must_close)
    conn.flush()


@pytest.mark.parametrize(("sent", "response", "expected"), [
    (b"", None, (IDLE, 10.0)), (b"\r\n", None, (IDLE, 10.0)), (b"G", None, (READING, 10.0)),
    (GET, (10, False), (IDLE, 60.0)), (GET + b"G", (10, False), (READING, 10.0)),
    (GET, (10, True), (DRAINING, 2.0)), (GET, (9_000_000, False), (WRITING, 30.0)),
    (GET + b"G", (9_000_000, True), (WRITING, 30.0)),
])  # fmt: skip
def test_a_parked_connection_has_the_events_and_the_deadline_of_its_state(
    all_of_them, make, sent, response, expected
):
    state, seconds = expected
    conn, client = make()
    if sent:
        client.sendall(sent)
        step(all_of_them, conn)
    before = monotonic()
    if response:
        size, closes = response
        all_of_them.unpark(conn)
        respond(conn, bytes(size), must_close=closes)
        all_of_them.park(conn)
    assert all_of_them.open[conn] == state.events
    found, deadline = all_of_them.parked[conn]
    assert found is conn.protocol.state is state
    assert deadline == pytest.approx(before + seconds, abs=0.5)
    all_of_them.parked[conn] = state, 1.0
    all_of_them.park(conn)
    assert all_of_them.parked[conn] == (state, 1.0)  # of the complete state
    assert all_of_them.sweep() == [conn]


def test_what_is_left_of_a_pipeline_is_continued_with(all_of_them, make):
    conn, client = make()
    client.sendall(GET + GET)
    step(all_of_them, conn)
    assert list(all_of_them.ready) == []
    respond(conn, b"x")
    all_of_them.park(conn)
    assert list(all_of_them.ready) == [conn]
    assert conn.step() is not None


@pytest.mark.parametrize(("state", "sent"), [(IDLE, b""), (READING, b"G"), (IDLE, b"\r\n")])
def test_a_deadline_ends_no_connection_whose_bytes_have_arrived(all_of_them, make, state, sent):
    (conn, client), (other, silent) = make(), make()
    if sent:
        client.sendall(sent)
        silent.sendall(sent)
        step(all_of_them, conn)
        step(all_of_them, other)
    client.sendall(b"G")
    assert conn.expire() is None
    assert conn.protocol.state is state
    rejection = other.expire()
    assert (rejection is None) == (state is IDLE)
    assert other.protocol.state is (CLOSED if state is IDLE else WRITING)


def test_a_client_that_has_reset_its_connection_is_disconnected(all_of_them, make):
    conn, client = make()
    all_of_them.close(conn)
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        conn = connection_of(*server.accept(), server.getsockname())
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        conn.expire()
        assert conn.protocol.state is CLOSED
        all_of_them.add(conn)
        all_of_them.park(conn)
        assert not all_of_them.open


def test_what_a_client_has_sent_before_it_resets_its_connection_is_not_drained(all_of_them, make):
    conn, client = make()
    client.sendall(GET)
    step(all_of_them, conn)
    all_of_them.unpark(conn)
    client.sendall(bytes(50_000))
    respond(conn, b"x", must_close=True)
    all_of_them.park(conn)
    client.settimeout(5)
    assert (client.recv(9), client.recv(9)) == (b"x", b"")
    assert conn.protocol.state is DRAINING
    conn.notice(READABLE | EPOLLHUP)
    assert conn.protocol.state is DRAINING
    conn.notice(READABLE | EPOLLHUP | EPOLLERR)
    assert conn.protocol.state is CLOSED


def test_only_what_a_client_has_read_since_the_last_time_is_progress(all_of_them, make, monkeypatch):
    unread = 0
    monkeypatch.setattr(connection, "ioctl", lambda *_: unread.to_bytes(4, "little"))
    conn, client = make()
    client.sendall(GET)
    step(all_of_them, conn)
    all_of_them.unpark(conn)
    respond(conn, bytes(9_000_000))
    unread = 4 * WRITE_PROGRESS
    all_of_them.park(conn)
    found = []
    for size in (0, WRITE_PROGRESS, 0, WRITE_PROGRESS - 1, 1):
        unread -= size
        all_of_them.parked[conn] = WRITING, 1.0
        found.append(all_of_them.sweep() == [])
    assert found == [False, True, False, False, True]
    assert all_of_them.parked[conn][1] > monotonic() + 29


def test_the_longest_parked_are_closed_if_all_hold_too_much(all_of_them, make, monkeypatch):
    monkeypatch.setattr(connections, "BUFFER_BUDGET", 100)
    made = [make()[0] for _ in range(4)]
    for conn, size in zip(made, (50, 0, 30, 20), strict=True):
        conn.protocol.outbox += b"x" * size
    all_of_them.sweep()
    assert list(all_of_them.open) == made
    assert not all_of_them.may_exceed_budget
    made[3].protocol.outbox += b"x"
    all_of_them.sweep()
    assert list(all_of_them.open) == made[1:]


def test_of_one_connection_more_than_the_limit_the_longest_parked_is_closed(all_of_them, make):
    all_of_them._limit = 2
    made = [make()[0] for _ in range(3)]
    assert list(all_of_them.open) == made[1:]
    assert made[0].fd not in all_of_them._scheduler._handlers


def test_at_a_stop_idle_connections_have_less_time_now_and_later(all_of_them, make):
    (conn, client), (other, _) = make(), make()
    other.protocol.receive(b"G")
    other.protocol.proceed()
    all_of_them.park(other)
    for limit in (2.0, 5.0):
        all_of_them.limit_idle_seconds(limit)
        assert all_of_them.parked[conn][1] <= monotonic() + 2.0
        assert all_of_them.parked[other][1] > monotonic() + 9.0
    client.sendall(GET)
    step(all_of_them, conn)
    all_of_them.unpark(conn)
    respond(conn, b"x")
    all_of_them.park(conn)
    assert all_of_them.parked[conn][1] <= monotonic() + 2.0


def test_the_more_connections_a_worker_has_the_longer_it_leaves_the_next_to_others(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(listeners, "monotonic", lambda: now[0])
    scheduler = Scheduler()
    accepted = http_connections(scheduler)
    with socket.create_server(("127.0.0.1", 0)) as bound:
        bound.settimeout(0)
        fd = bound.fileno()
        one = SimpleNamespace(sock=bound, fileno=bound.fileno)
        accepting = Listeners([one], scheduler, accepted, accepted, connection_of)
        clients = [socket.create_connection(bound.getsockname()) for _ in range(3)]
        accepting.ready.append(fd)
        for opened, pause in enumerate((0.0001, 0.0002, 0.0003), start=1):
            for _ in range(2):
                accepting.accept()
                assert (len(accepted.open), accepting.ready) == (opened, [fd])
            assert accepting.pauses_until == pytest.approx(now[0] + pause, abs=1e-6)
            now[0] = accepting.pauses_until
        for conn in list(accepted.open):
            accepted.close(conn)
        for client in clients:
            client.close()
