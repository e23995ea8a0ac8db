"""Clients that misuse their connections, to the service or to the operator's listener."""

import itertools
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress

from tests.matrix.cell import Bound, Cell, Fault
from tests.matrix.stage import Stage
from tests.support.repeating import repeated
from tests.support.tcp_proxy import RESET_ON_CLOSE

_SILENT = 1500
_OPERATORS = 200
_SLOW = 50
_INTERVAL = 0.02
_BODY = 200_000
_PAGE = b"GET /manager/stacks?limit=100 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n\r\n"
_CREATE = (
    b"POST /manager/stacks HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n"
    b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
)


def connect(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=5)
    connection.settimeout(0)
    return connection


def _acting(act: Callable[[], None]) -> AbstractContextManager[None]:
    """Return a context in which clients do something again and again, whatever becomes of it."""

    def try_to_act() -> None:
        with suppress(OSError):
            act()

    return repeated(try_to_act, _INTERVAL)


@contextmanager
def be_silent(stage: Stage) -> Iterator[None]:
    """Open many connections, and send nothing."""
    with ExitStack() as undo:
        for _ in range(_SILENT):
            undo.enter_context(connect(stage.service.port))
        yield


@contextmanager
def crowd_the_operator(stage: Stage) -> Iterator[None]:
    """Open more connections to the operator's listener than it keeps, and send nothing."""
    with ExitStack() as undo:
        for _ in range(_OPERATORS):
            undo.enter_context(connect(stage.service.admin_port))
        yield


def resetting(request: bytes) -> Fault:
    """Return the fault that connections are reset once this was sent."""

    @contextmanager
    def fault(stage: Stage) -> Iterator[None]:
        key = stage.managers[0].api_key.encode()
        sent = request % key if b"%s" in request else request

        def act() -> None:
            for _ in range(10):
                with connect(stage.service.port) as connection:
                    connection.send(sent)
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)

        with _acting(act):
            yield

    return fault


@contextmanager
def read_nothing(stage: Stage) -> Iterator[None]:
    """Send many requests on each connection, and read no response."""
    key = stage.managers[0].api_key.encode()
    with ExitStack() as undo:
        for _ in range(_SLOW):
            connection = undo.enter_context(connect(stage.service.port))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.send(_PAGE % key * 20)
        yield


@contextmanager
def trickle(stage: Stage) -> Iterator[None]:
    """Send bodies a byte at a time."""
    key = stage.managers[0].api_key.encode()
    with ExitStack() as undo:
        connections = [undo.enter_context(connect(stage.service.port)) for _ in range(_SLOW)]
        for connection in connections:
            connection.send(_CREATE % (key, _BODY))
        turn = itertools.cycle(connections)

        def act() -> None:
            for connection in itertools.islice(turn, len(connections)):
                connection.send(b" ")

        undo.enter_context(_acting(act))
        yield


@contextmanager
def send_garbage(stage: Stage) -> Iterator[None]:
    def act() -> None:
        for _ in range(10):
            with connect(stage.service.port) as connection:
                connection.send(stage.chance.randbytes(200) + b"\r\n\r\n")
                time.sleep(0.001)

    with _acting(act):
        yield


EMPTY = {
    "listening socket: dies": "systemd holds it, and it has no file: stopping the service does not close it",
    "port at a start: is full": "systemd binds the ports once, when the host starts",
    "client: is full": "what a client keeps is its own",
}

CELLS = [
    Cell("clients (silent)", "hangs", be_silent, Bound(), lasts=3.0),
    Cell("clients (reset at once)", "dies", resetting(b"GET"), Bound(), lasts=3.0),
    Cell(
        "clients (reset before the response)",
        "dies",
        resetting(_PAGE),
        Bound(),
        lasts=3.0,
    ),
    Cell("clients (readers)", "hangs", read_nothing, Bound(), lasts=3.0),
    Cell("clients (writers)", "is slow", trickle, Bound(), lasts=3.0),
    Cell("clients", "lies", send_garbage, Bound(), lasts=3.0),
    Cell("operator's listener", "is full", crowd_the_operator, Bound(), lasts=3.0),
]
