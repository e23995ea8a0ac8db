"""A raw HTTP client: bytes on a socket, for what a client library would tidy up."""

import http.client
import socket
import ssl
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from typing import Any

from tests.support.client import STACKS, check_response
from tests.support.server import Response

TIMEOUT_SECONDS = 20.0


class RawClient(AbstractContextManager["RawClient"]):
    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._reader = connection.makefile("rb")

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._reader.close()
        self.socket.close()

    def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.socket.sendall(piece)

    def finish(self) -> None:
        self.socket.shutdown(socket.SHUT_WR)

    def read_some(self) -> bytes:
        return self._reader.read1(1_000_000)

    def read_all(self) -> bytes:
        data = bytearray()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1_000_000)
        with suppress(ConnectionError, ssl.SSLEOFError):
            while piece := self.read_some():
                data += piece
        return bytes(data)

    def response(self, method: str = "GET") -> Response:
        """Return the next response.  Raises ConnectionError or HTTPException if it is not complete."""
        received = http.client.HTTPResponse(_Kept(self._reader), method=method)  # type: ignore[arg-type]
        received.begin()
        return Response(received.status, received.headers, received.read(), received.version)

    def checked_response(self, method: str = "POST", path: str = STACKS) -> Response:
        """Return the next response, whose form is checked as that of a request with *method* for *path*."""
        response = self.response(method)
        check_response(method, path, response.status, response.headers, response.body)
        return response

    def is_ended(self) -> bool:
        """Whether the server closes the connection and has sent nothing more."""
        try:
            return self._reader.read(1) == b""
        except ConnectionResetError:
            return True


class _Kept:
    """A stand-in for a socket, because HTTPResponse wants to make, and to close, a reader of its own."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader

    def makefile(self, _: str) -> "_Kept":
        return self

    def close(self) -> None:
        """Leave the connection open."""

    def flush(self) -> None:
        """Do nothing: the reader may have been closed before the response is."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)


def connect(port: int, data: bytes = b"", receive_buffer: int = 0) -> RawClient:
    connection = socket.socket()
    if receive_buffer:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.settimeout(TIMEOUT_SECONDS)
    connection.connect(("127.0.0.1", port))
    client = RawClient(connection)
    client.send(data)
    return client


def head(method: str, path: str, headers: Mapping[str, str | bytes]) -> bytes:
    first = f"{method} {path} HTTP/1.1\r\nHost: stackmgr.test".encode()
    fields = (b"%b: %b" % (n.encode(), v if isinstance(v, bytes) else v.encode()) for n, v in headers.items())
    return b"\r\n".join([first, *fields, b"", b""])


def chunked(body: bytes, size: int | None = None) -> bytes:
    size = size or len(body)
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
