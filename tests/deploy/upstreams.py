"""Services that misbehave in one chosen way, to stand behind nginx."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

# What to do with a connection that has sent a request; whether to wait for another one on it.
Behaviour = Callable[[socket.socket], bool]

_STOP_DEADLINE = 10.0


@dataclass
class Upstream:
    """What listens on *port* has seen these heads of requests, in order, on so many connections."""

    port: int
    heads: list[bytes] = field(default_factory=list)
    connections: int = 0

    def fields(self) -> dict[str, str]:
        """Return the header fields of the last request by their names in lowercase."""
        lines = self.heads[-1].decode("latin-1").split("\r\n")[1:]
        return {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _read_request(connection: socket.socket) -> bytes:
    """Return the head of one request, having read its body as well; nothing if the client has left."""
    received = b""
    while b"\r\n\r\n" not in received:
        piece = connection.recv(65536)
        if not piece:
            return b""
        received += piece
    head, _, body = received.partition(b"\r\n\r\n")
    fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
    missing = int(fields.get(b"content-length", 0)) - len(body)
    while missing > 0:
        missing -= len(connection.recv(65536))
    return head


@contextmanager
def running_upstream(behave: Behaviour) -> Iterator[Upstream]:
    """Run *behave* after each request, each connection in a thread, until the context ends."""
    listener = socket.create_server(("127.0.0.1", 0))
    upstream = Upstream(listener.getsockname()[1])

    def serve_one(connection: socket.socket) -> None:
        upstream.connections += 1
        with connection:
            while head := _read_request(connection):
                upstream.heads.append(head)
                if not behave(connection):
                    return

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve_one, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield upstream
    finally:
        # Closing alone would not wake the thread that accepts.
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(_STOP_DEADLINE)


def responding(data: bytes, *, keep: bool = False) -> Behaviour:
    """Return a behaviour: send *data*, then close the connection, or keep it."""

    def behave(connection: socket.socket) -> bool:
        connection.sendall(data)
        return keep

    return behave


def silent(connection: socket.socket) -> bool:
    """Never respond; the client leaves in the end."""
    connection.recv(1)
    return False


hanging_up = responding(b"")
well = responding(
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}", keep=True
)
