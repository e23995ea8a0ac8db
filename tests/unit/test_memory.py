"""What the unread responses of a worker count for."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from stackmgr.capacity import Capacity
from stackmgr.server import memory
from stackmgr.server.connection import ClientConnection
from stackmgr.server.connections import HttpConnections
from stackmgr.server.memory import MEMORY_LIMIT_BYTES, ResponseMemory
from tests.support.waiting import eventually


@pytest.fixture
def connections() -> HttpConnections:
    return HttpConnections(keepalive=60.0)


@pytest.fixture
def connect(connections: HttpConnections) -> Iterator[Callable[..., ClientConnection]]:
    """Return a function that adds a connection, with bytes reserved for a response and bytes to send."""
    with ExitStack() as stack:

        def add(reserved: int = 0, queued: bytes = b"") -> ClientConnection:
            server, client = socket.socketpair()
            stack.enter_context(client)
            conn = ClientConnection(server, "", "", Capacity())
            conn.capacity.reserved = reserved
            if queued:
                conn.queue(queued)
            connections.add(conn)
            return conn

        yield add
        for conn in list(connections.open):
            connections.close(conn)


def test_a_response_that_has_been_reserved_and_is_queued_counts_once(connections, connect, monkeypatch):
    responses = ResponseMemory(connections)
    sent = {connect(reserved=9, queued=b"queue"), connect(reserved=20), connect(queued=b"x" * 100)}
    monkeypatch.setattr(memory, "MEMORY_LIMIT_BYTES", 9 + 20 + 100)
    responses.enforce()
    assert connections.open == sent
    monkeypatch.setattr(memory, "MEMORY_LIMIT_BYTES", 9 + 20 + 100 - 1)
    responses.enforce()
    assert len(connections.open) == 2


def test_a_connection_that_is_closed_meanwhile_does_not_keep_a_response_waiting(
    connections, connect, monkeypatch
):
    responses = ResponseMemory(connections)
    connect(queued=b"x" * 100).sock.close()
    monkeypatch.setattr(memory, "MEMORY_LIMIT_BYTES", 99)
    responses.enforce()
    assert connections.parked == {}


def test_only_two_pages_wait_for_room(connections, connect):
    responses = ResponseMemory(connections)
    full = connect(reserved=MEMORY_LIMIT_BYTES)
    found = []

    def wait() -> None:
        found.append(responses.wait_for_room(connect().capacity, 1))

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    eventually(lambda: found)
    assert found == [False]
    full.capacity.reserved = 0
    for thread in threads:
        thread.join(60)
    assert found == [False, True, True]
    assert responses.wait_for_room(connect().capacity, 1)
