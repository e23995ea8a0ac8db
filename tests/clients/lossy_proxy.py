"""An HTTP proxy that loses the response to the first request of some methods."""

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class LossyProxy(ThreadingHTTPServer):
    """Forwards to *port* of 127.0.0.1.  `lost` lists the methods whose response was lost."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.upstream_port = port
        self.to_lose = {"POST", "PATCH"}
        self.lost: list[str] = []

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: LossyProxy
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body are two writes: each response would wait for a delayed ACK

    def _forward(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        upstream = http.client.HTTPConnection("127.0.0.1", self.server.upstream_port, timeout=60)
        upstream.request(self.command, self.path, body or None, dict(self.headers))
        response = upstream.getresponse()
        content = response.read()
        upstream.close()
        if self.command in self.server.to_lose:
            self.server.to_lose.remove(self.command)
            self.server.lost.append(self.command)
            self.close_connection = True
            return
        self.send_response_only(response.status)
        for name, value in response.getheaders():
            if name.lower() not in {"connection", "transfer-encoding"}:
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_PATCH = _forward  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextmanager
def lossy_proxy(port: int) -> Iterator[LossyProxy]:
    """Run a proxy until the context ends."""
    with LossyProxy(port) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, daemon=True)
        thread.start()
        yield proxy
        proxy.shutdown()
        thread.join()
