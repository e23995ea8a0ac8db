"""An HTTP proxy that changes requests and responses, or loses responses."""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.support import server
from tests.support.http_server import Request, http_server, response


@dataclass
class Exchange:
    """A request and the response to it, on their way; header names are in lowercase."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    status: int = 0
    received: dict[str, str] = field(default_factory=dict)
    content: bytes = b""
    is_lost: bool = False


Change = Callable[[Exchange], None]


def _nothing(_: Exchange) -> None:
    """Forward unchanged."""


def _send_on(exchange: Exchange, port: int) -> None:
    headers = {name: value for name, value in exchange.headers.items() if name != "content-length"}
    body = exchange.body if exchange.body or exchange.method in ("POST", "PATCH") else None
    received = server.exchange(port, exchange.path, headers, exchange.method, body)
    exchange.status, exchange.content = received.status, received.body
    exchange.received = {name.lower(): value for name, value in received.headers.items()}


@contextmanager
def http_proxy(port: int, before: Change = _nothing, after: Change = _nothing) -> Iterator[str]:
    def forward(client: socket.socket, request: Request) -> bool:
        method, path, _ = request.line.split(" ")
        exchange = Exchange(method, path, request.headers, request.body)
        before(exchange)
        _send_on(exchange, port)
        after(exchange)
        if exchange.is_lost:
            return False
        hop = ("content-length", "connection", "transfer-encoding")
        fields = [f"{name}: {value}" for name, value in exchange.received.items() if name not in hop]
        client.sendall(response(exchange.status, exchange.content, *fields))
        return True

    with http_server(forward) as proxy:
        proxy.read_deadline = None
        yield proxy.url
