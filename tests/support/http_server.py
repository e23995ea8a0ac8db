"""An HTTP server on loopback with a behaviour of the test: unless that returns True, the server closes."""

import json
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator, MutableSequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

_READ_DEADLINE = 10.0


@dataclass
class Request:
    """A request as it arrived; header names are in lowercase."""

    line: str
    headers: dict[str, str]
    body: bytes
    number_on_connection: int


Behaviour = Callable[[socket.socket, Request], bool | None]


def response(status: int, body: bytes | dict[str, Any], *headers: str) -> bytes:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(content)}", *headers, "", ""]
    return "\r\n".join(lines).encode("latin-1") + content


def respond(status: int, body: bytes | dict[str, Any], *headers: str) -> Behaviour:
    return raw(response(status, body, *headers), keep=True)


def raw(data: bytes, *, keep: bool = False) -> Behaviour:
    def behave(client: socket.socket, _: Request) -> bool:
        client.sendall(data)
        return keep

    return behave


def reset(client: socket.socket, _: Request) -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def hang_up(client: socket.socket, _: Request) -> None:
    """Close without a byte of a response."""


def drip(data: bytes, pause: float) -> Behaviour:
    def behave(client: socket.socket, _: Request) -> None:
        for position in range(len(data)):
            client.sendall(data[position : position + 1])
            time.sleep(pause)

    return behave


@dataclass
class HttpServer:
    """A server on 127.0.0.1; `behave` may be set anew at any time, `release` lets `silence` go on."""

    listener: socket.socket
    context: ssl.SSLContext | None = None
    behave: Behaviour = hang_up
    requests: MutableSequence[Request] = field(default_factory=list)
    connections: int = 0
    release: threading.Event = field(default_factory=threading.Event)
    read_deadline: float | None = _READ_DEADLINE

    @property
    def port(self) -> int:
        port: int = self.listener.getsockname()[1]
        return port

    @property
    def url(self) -> str:
        return f"{'https' if self.context else 'http'}://127.0.0.1:{self.port}"

    def silence(self, client: socket.socket, _: Request) -> None:
        self.release.wait(_READ_DEADLINE)

    def start(self) -> None:
        threading.Thread(target=self._serve, args=(self.listener,), daemon=True).start()

    def stop(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)  # close() alone would leave the thread in accept()
        self.listener.close()

    @contextmanager
    def not_listening(self) -> Iterator[None]:
        """Accept no connection, and respond to no request on those that are open, until the context ends."""
        address, behave = self.listener.getsockname(), self.behave
        self.stop()
        self.behave = reset
        try:
            yield
        finally:
            self.behave = behave
            self.listener = socket.create_server(address)
            self.start()

    def _serve(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                self.connections += 1
                threading.Thread(target=self._attend, args=(client,), daemon=True).start()

    def _attend(self, client: socket.socket) -> None:
        client.settimeout(self.read_deadline)
        with suppress(OSError), client:
            if self.context is not None:
                client = self.context.wrap_socket(client, server_side=True)
            with client, client.makefile("rb") as reader:
                number = 0
                while request := _read(reader, number := number + 1):
                    self.requests.append(request)
                    if not self.behave(client, request):
                        return


def _read(reader: Any, number: int) -> Request | None:
    line = reader.readline().decode("latin-1").rstrip("\r\n")
    if not line:
        return None
    headers = {}
    while field_line := reader.readline().decode("latin-1").rstrip("\r\n"):
        name, _, value = field_line.partition(":")
        headers[name.lower()] = value.strip()
    return Request(line, headers, reader.read(int(headers.get("content-length", 0))), number)


@contextmanager
def http_server(behave: Behaviour = hang_up, context: ssl.SSLContext | None = None) -> Iterator[HttpServer]:
    server = HttpServer(socket.create_server(("127.0.0.1", 0)), context, behave)
    server.start()
    try:
        yield server
    finally:
        server.release.set()
        server.stop()
