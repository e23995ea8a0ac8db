"""Which thread owns a connection: none takes one that another has served since it looked."""

import socket
from collections.abc import Iterator
from errno import EMFILE
from select import EPOLLIN, EPOLLOUT
from time import monotonic, sleep
from typing import Any

import pytest

from stackmgr.capacity import UNLIMITED
from stackmgr.server import SERVING
from stackmgr.server.connection import ClientConnection
from stackmgr.server.connections import WRITE, HttpConnections
from stackmgr.server.listeners import Listeners


class Served(dict[int, ClientConnection]):
    """Parked connections, of which another thread serves one just before this one takes it."""

    def __init__(self, connections: HttpConnections) -> None:
        super().__init__(connections.parked)
        self._connections = connections
        self.is_waiting = True

    def pop(self, fd: int, *default: None) -> ClientConnection | None:  # type: ignore[override]
        if self.is_waiting:
            self.is_waiting = False
            taken = super().pop(fd)
            taken.phase = SERVING
            self._connections.park(taken)
        return super().pop(fd, *default)


@pytest.fixture
def parked() -> Iterator[tuple[HttpConnections, ClientConnection]]:
    """A connection that has bytes to read and whose deadline has passed."""
    connections = HttpConnections(keepalive=60.0)
    server, client = socket.socketpair()
    with client:
        conn = ClientConnection(server, "", "", UNLIMITED)
        connections.add(conn)
        client.sendall(b"G")
        conn.deadline = monotonic() - 1.0
        yield connections, conn
        connections.close(conn)


def test_a_connection_whose_deadline_has_passed_is_taken(parked):
    connections, conn = parked
    assert connections.take_expired() == [conn]
    assert connections.parked == {}


def test_a_connection_that_was_served_meanwhile_is_left_to_its_new_deadline(parked):
    connections, conn = parked
    connections.parked = Served(connections)
    assert connections.take_expired() == []
    assert list(connections.parked.values()) == [conn]
    assert conn.deadline > monotonic()


def test_a_connection_that_has_been_ready_for_longer_than_the_limit_is_overdue(parked):
    connections, conn = parked
    waiting, _ = connections.poll_waiting()
    assert list(connections.take_overdue(waiting, 60.0)) == []
    sleep(0.02)
    assert list(connections.take_overdue(waiting, 0.01)) == [conn]
    assert connections.parked == {}


def test_a_connection_that_was_served_meanwhile_is_not_overdue(parked):
    connections, conn = parked
    waiting, _ = connections.poll_waiting()
    sleep(0.02)
    connections.parked = Served(connections)
    assert list(connections.take_overdue(waiting, 0.01)) == []
    assert list(connections.parked.values()) == [conn]


def test_a_connection_that_was_served_meanwhile_is_not_the_longest_parked(parked):
    connections, conn = parked
    connections.parked = Served(connections)
    connections.close_longest_parked()
    assert connections.open == {conn}


class Replaced(dict[int, ClientConnection]):
    """Parked connections, of which another thread replaces one that this one has just found."""

    def __init__(self, connections: HttpConnections, new: ClientConnection) -> None:
        super().__init__(connections.parked)
        self._new = new
        self._arm = connections.arm

    def get(self, fd: int, *default: None) -> ClientConnection | None:  # type: ignore[override]
        found = super().get(fd, *default)
        if found is not None and found is not self._new:
            self[fd] = self._new
            self._arm(fd, self._new.events)
        return found


def test_a_connection_that_gets_the_descriptor_of_one_that_was_just_found_is_watched(parked):
    connections, conn = parked
    new = ClientConnection(conn.sock, "", "", UNLIMITED)
    new.events = WRITE
    connections.parked = Replaced(connections, new)
    assert connections.poll_waiting() == ([conn], [])
    assert connections.epoll.poll(0) == [(conn.fd, EPOLLOUT)]


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


def test_a_connection_to_the_managers_listener_makes_room_for_the_operator(parked):
    managers, conn = parked
    operators, listener = HttpConnections(keepalive=60.0), FullListener(conn)
    listeners = Listeners([listener], operators, 64, expendable=managers)
    listeners.watch()
    with socket.create_connection(listener.getsockname()):
        assert operators.epoll.poll(10, 1) == [(listener.fileno(), EPOLLIN)]
        assert listeners.accept(listener.fileno()) is None
        assert managers.open == set()
        assert operators.epoll.poll(10, 1) == [(listener.fileno(), EPOLLIN)]  # at once, not at the next sweep
        assert listeners.accept(listener.fileno()) == listener.fileno()
        [accepted] = operators.open
    operators.close(accepted)
    listeners.close()
