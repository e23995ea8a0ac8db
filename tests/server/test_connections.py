"""The connections of a worker: which phase follows, what ends them, and who makes room for whom."""

import socket
from collections.abc import Iterator
from errno import EMFILE
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest

from stackmgr.scheduler import Scheduler
from stackmgr.server import CLOSED, DRAINING, IDLE, READING, SERVING, WRITING, connections, listeners, worker
from stackmgr.server.connection import WRITE_PROGRESS, ClientConnection, Disconnected
from stackmgr.server.connections import HttpConnections
from stackmgr.server.listeners import Listeners
from stackmgr.server.queue import Place, RequestQueue

QUEUE: RequestQueue[Any] = RequestQueue(1)


@pytest.fixture
def parked() -> Iterator[tuple[HttpConnections, ClientConnection, socket.socket]]:
    """Connections, one of them, and its client."""
    all_of_them = HttpConnections(Scheduler(), 1000, keepalive=60.0)
    server, client = socket.socketpair()
    with client:
        conn = ClientConnection(server, "", "", Place(QUEUE))
        all_of_them.add(conn)
        yield all_of_them, conn, client
        all_of_them.close(conn)


@pytest.mark.parametrize(("changes", "phase", "seconds"), [
    ({}, IDLE, 60.0), ({"inbox": b"\r\n"}, IDLE, 60.0), ({"inbox": b"G"}, READING, 10.0),
    ({"outbox": b"x"}, WRITING, 30.0), ({"outbox": b"x", "closing": True}, WRITING, 30.0),
    ({"closing": True}, DRAINING, 2.0), ({"closing": True, "inbox": b"G"}, DRAINING, 2.0),
])  # fmt: skip
def test_the_phase_after_a_response_follows_from_what_is_left(parked, changes, phase, seconds):
    all_of_them, conn, _ = parked
    conn.phase = SERVING
    for name, value in changes.items():
        setattr(conn, name, bytearray(value) if isinstance(value, bytes) else value)
    before = monotonic()
    all_of_them.park(conn)
    assert (conn.phase, conn.events) == (phase, phase.events)
    assert before + seconds <= conn.deadline <= monotonic() + seconds
    conn.deadline = 1.0
    all_of_them.park(conn)
    assert conn.deadline == 1.0  # of the whole phase
    assert all_of_them.sweep() == [conn]


def test_what_is_left_of_a_pipeline_is_continued_with(parked):
    all_of_them, conn, _ = parked
    conn.inbox += b"GET / HTTP/1.1\r\n"
    all_of_them.park(conn)
    all_of_them.park(conn)
    assert list(all_of_them.continuing) == [conn]


def test_a_connection_that_the_client_has_reset_is_not_parked(parked):
    all_of_them, conn, _ = parked
    conn.is_gone = True
    with pytest.raises(Disconnected):
        all_of_them.park(conn)


def test_the_longest_parked_are_closed_if_all_hold_too_much(parked, monkeypatch):
    all_of_them, first, _ = parked
    monkeypatch.setattr(connections, "BUFFER_BUDGET", 100)
    pairs = [socket.socketpair() for _ in range(3)]
    others = [ClientConnection(server, "", "", Place(QUEUE)) for server, _ in pairs]
    first.outbox += b"x" * 50
    for conn, size in zip(others, (0, 30, 20), strict=True):
        conn.inbox += b"x" * size
        all_of_them.add(conn)
    all_of_them.sweep()
    assert all_of_them.open == {first, *others}
    others[2].inbox += b"x"
    all_of_them.sweep()
    assert all_of_them.open == set(others)
    assert first.phase is CLOSED
    for conn, (_, client) in zip(others, pairs, strict=True):
        all_of_them.close(conn)
        client.close()


def test_of_one_connection_more_than_the_limit_the_longest_parked_is_closed():
    limited, pairs = HttpConnections(Scheduler(), 2, keepalive=60.0), [socket.socketpair() for _ in range(3)]
    added = [ClientConnection(server, "", "", Place(QUEUE)) for server, _ in pairs]
    for conn in added:
        limited.add(conn)
    assert limited.open == set(added[1:])
    for conn, (_, client) in zip(added, pairs, strict=True):
        limited.close(conn)
        client.close()


def test_only_what_a_client_has_read_since_the_last_time_is_progress(parked):
    all_of_them, conn, _ = parked
    conn.outbox += bytes(4 * WRITE_PROGRESS)
    all_of_them.park(conn)
    progress = []
    for size in (0, WRITE_PROGRESS, 0, WRITE_PROGRESS - 1, 1):
        del conn.outbox[:size]
        progress.append(conn.note_progress())
    assert progress == [False, True, False, False, True]


def test_at_a_stop_idle_connections_have_less_time_now_and_later(parked):
    all_of_them, conn, _ = parked
    for limit in (2.0, 5.0):
        all_of_them.limit_idle_seconds(limit)
        assert conn.deadline <= monotonic() + 2.0
    conn.phase = SERVING
    all_of_them.park(conn)
    assert conn.deadline <= monotonic() + 2.0


def test_in_each_turn_one_that_continues_is_parsed_and_one_that_has_had_no_turn(parked, monkeypatch):
    monkeypatch.setattr(worker, "PARSE_SECONDS", 0.0)
    turns: list[Any] = []
    served = worker.Worker.__new__(worker.Worker)
    served.connections = served.admin = all_of_them = parked[0]
    served._proceed = lambda _, conn: turns.append(conn)
    all_of_them.ready.extend("ab")
    all_of_them.continuing.extend("xy")
    for _ in range(2):
        served._parse()
    assert turns == ["x", "a", "y", "b"]


class FullListener:
    """A listener for which there is no descriptor until the context's connection is closed."""

    def __init__(self, needed: ClientConnection) -> None:
        self._needed = needed
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(0)
        self.sock = self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._listener, name)

    def accept(self) -> Any:
        if self._needed.sock.fileno() >= 0:
            raise OSError(EMFILE, "Too many open files")
        return self._listener.accept()


def test_the_more_connections_a_worker_has_the_longer_it_leaves_the_next_to_others(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(listeners, "monotonic", lambda: now[0])
    scheduler = Scheduler()
    accepted = HttpConnections(scheduler, 64, keepalive=60.0)
    with socket.create_server(("127.0.0.1", 0)) as bound:
        bound.settimeout(0)
        fd = bound.fileno()
        accepting = Listeners([SimpleNamespace(sock=bound, fileno=bound.fileno)], scheduler, QUEUE, accepted)
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


def test_a_listener_without_descriptors_is_not_watched_again_once_it_is_closed(parked):
    scheduler, listener = Scheduler(), FullListener(parked[1])
    accepted = HttpConnections(scheduler, 64, keepalive=60.0)
    accepting = Listeners([listener], scheduler, QUEUE, accepted)
    accepting.watch()
    accepting.ready.append(listener.fileno())
    accepting.accept()
    assert accepted.paused == [listener.fileno()]
    accepting.close()
    accepted.sweep()


def test_a_connection_to_the_managers_listener_makes_room_for_the_operator(parked):
    managers, conn, _ = parked
    scheduler = Scheduler()
    operators, listener = HttpConnections(scheduler, 64, keepalive=60.0), FullListener(conn)
    accepting = Listeners([listener], scheduler, QUEUE, operators, expendable=managers)
    accepting.watch()
    waiting = socket.create_connection(listener.getsockname())
    turns = []

    def turn() -> bool:
        turns.append(accepting.ready)
        accepting.accept()
        return not operators.open

    scheduler.run(turn, lambda: 60.0)  # at once, not at the next sweep
    assert turns == [[], [listener.fileno()], [listener.fileno()]]
    assert managers.open == set()
    [accepted] = operators.open
    operators.close(accepted)
    accepting.close()
    waiting.close()
