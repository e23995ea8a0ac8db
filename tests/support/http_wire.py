"""HTTP as bytes on a socket, for what a client library would tidy up."""

import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from typing import Any

from tests.support.client import STACKS, check_answer
from tests.support.server import RunningService


@dataclass(frozen=True)
class Answer:
    """An answer whose form has been checked."""

    status: int
    headers: Message
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Wire:
    """One connection."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._reader = connected.makefile("rb")

    def send(self, *pieces: bytes) -> None:
        """Send each piece by itself."""
        for piece in pieces:
            self._socket.sendall(piece)

    def finish(self) -> None:
        """Say that nothing more will be sent (FIN)."""
        self._socket.shutdown(socket.SHUT_WR)

    def line(self) -> bytes:
        """Return the next line as it came."""
        return self._reader.readline()

    def answer(self, method: str = "POST", path: str = STACKS) -> Answer:
        """Return the next answer, whose form is checked as that of a request with *method* for *path*."""
        response = http.client.HTTPResponse(_Kept(self._reader), method=method)  # type: ignore[arg-type]
        response.begin()
        answer = Answer(response.status, response.headers, response.read())
        check_answer(method, path, answer.status, answer.headers, answer.body)
        return answer

    def is_ended(self) -> bool:
        """Whether the server closes the connection, having sent nothing more."""
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

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)


@contextmanager
def connected(service: RunningService) -> Iterator[Wire]:
    """Open a connection to *service*."""
    with socket.create_connection(("127.0.0.1", service.port), timeout=20) as connection:
        yield Wire(connection)


def head(method: str, path: str, headers: dict[str, str | bytes]) -> bytes:
    """Return the head of a request, with `Host` and nothing else that is not given."""
    lines = [f"{method} {path} HTTP/1.1", "Host: stackmgr.test"]
    fields = [
        f"{name}: ".encode() + (v if isinstance(v, bytes) else v.encode()) for name, v in headers.items()
    ]
    return b"\r\n".join([*(line.encode() for line in lines), *fields, b"", b""])


def chunked(body: bytes, size: int | None = None) -> bytes:
    """Return *body* in chunks of *size* bytes, ended as it should be."""
    size = size or len(body)
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
