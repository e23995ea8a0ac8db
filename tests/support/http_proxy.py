"""An HTTP proxy that changes requests and responses, or loses responses."""

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Exchange:
    """A request on its way to the service, and the response on its way back."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    status: int = 0
    received: dict[str, str] = field(default_factory=dict)
    content: bytes = b""
    is_lost: bool = False

    @property
    def is_item(self) -> bool:
        return self.path.startswith("/manager/stacks/")


Change = Callable[[Exchange], None]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body are two writes: each response would wait for a delayed ACK
    target: int
    before: Change
    after: Change

    def _forward(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        exchange = Exchange(self.command, self.path, dict(self.headers.items()), body)
        self.before(exchange)
        self._send_on(exchange)
        self.after(exchange)
        if exchange.is_lost:
            self.close_connection = True
            return
        self.send_response_only(exchange.status)
        for name, value in exchange.received.items():
            if name not in ("content-length", "connection", "transfer-encoding"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(exchange.content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(exchange.content)

    def _send_on(self, exchange: Exchange) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.target, timeout=30)
        headers = {
            name: value for name, value in exchange.headers.items() if name.lower() != "content-length"
        }
        body = exchange.body if exchange.body or self.command in ("POST", "PATCH") else None
        connection.request(exchange.method, exchange.path, body, headers)
        response = connection.getresponse()
        exchange.status, exchange.content = response.status, response.read()
        exchange.received = {name.lower(): value for name, value in response.getheaders()}
        connection.close()

    def log_message(self, *_: object) -> None:
        """Requests are not logged."""


for _method in ("GET", "HEAD", "POST", "PATCH", "PUT", "DELETE", "OPTIONS"):
    setattr(_Handler, f"do_{_method}", _Handler._forward)


def _nothing(_: Exchange) -> None:
    """Forward unchanged."""


@contextmanager
def http_proxy(port: int, before: Change = _nothing, after: Change = _nothing) -> Iterator[str]:
    """Run a proxy to *port* of 127.0.0.1 that changes each exchange, and yield its base URL."""
    methods = {"target": port, "before": staticmethod(before), "after": staticmethod(after)}
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), methods)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
