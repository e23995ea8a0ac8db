"""gunicorn's own HTTP/1 parts, fed from memory and freed of what they compute again for every request.

What a valid request is stays gunicorn's decision: the parser and the body readers are used as they are.
Changed is where they read from, and how often settings, the date and the constant part of the environ are
looked up, which together is more than half of what stock gunicorn spends on a small request.
"""

from collections.abc import Callable
from time import time
from types import SimpleNamespace
from typing import Any

from gunicorn.http.body import Body
from gunicorn.http.errors import NoMoreData, ParseException
from gunicorn.http.message import Request as GunicornRequest
from gunicorn.http.wsgi import Response as GunicornResponse
from gunicorn.util import http_date, unquote_to_wsgi_str

PIECE = 8192  # the chunk reader copies what is left of a piece for every chunk in it: keep pieces small


class BrokenBody(OSError):
    """The rest of a body read by the application is malformed or late."""


def frozen(cfg: Any) -> SimpleNamespace:
    """Copy the settings: `cfg.name` walks through settings objects, and a request asks forty times: 30 µs."""
    values = {name: setting.get() for name, setting in cfg.settings.items()}
    values["http_parser"] = "python"  # the C parser lets bare LF and folded lines through
    return SimpleNamespace(**values, is_ssl=False)


class Request(GunicornRequest):  # type: ignore[misc]  # gunicorn is untyped
    """gunicorn's request; no peer may set the scheme, the script name or the path by a header."""

    def _peer_trusted_for_forwarded(self) -> tuple[dict[str, str], list[str]]:
        return {}, []


class GuardedBody(Body):  # type: ignore[misc]
    """A body read while it arrives: what is wrong with it is an OSError, as an application expects."""

    def _read_reader(self, size: int) -> bytes:
        try:
            return bytes(super()._read_reader(size))
        except ParseException as exc:
            raise BrokenBody(type(exc).__name__) from None


class Inbox:
    """What gunicorn's readers read from (an `Unreader`): bytes already here, then `more()` if given."""

    __slots__ = ("_at", "_data", "more")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self.more: Callable[[int], bytes] | None = None

    def read(self, size: int | None = None, read_ahead: int | None = None) -> bytes:
        """Return `size` bytes, never fewer, or without a size whatever is next, empty at the end."""
        if size is None:
            size = PIECE
            if self._at >= len(self._data) and self.more:
                return self.more(PIECE)
        elif len(self._data) - self._at < size:
            self._fetch(size)
        piece = self._data[self._at : self._at + size]
        self._at += len(piece)
        return piece

    def _fetch(self, size: int) -> None:
        parts = [self.rest()]
        have = len(parts[0])
        while have < size:
            part = self.more(size - have) if self.more else b""
            if not part:
                raise NoMoreData  # LengthReader would pass a truncated body on as a whole one
            parts.append(part)
            have += len(part)
        self._data, self._at = b"".join(parts), 0

    def unread(self, data: bytes) -> None:
        """Take back bytes read too far."""
        if data:
            self._data, self._at = bytes(data) + self.rest(), 0

    def rest(self) -> bytes:
        """Return what nobody has read."""
        return self._data[self._at :]


class Response(GunicornResponse):  # type: ignore[misc]
    """gunicorn's response, its date made once a second."""

    _date = (0, "")

    def default_headers(self) -> list[str]:
        """Return the status line and the headers that every answer has."""
        second = int(time())
        if Response._date[0] != second:
            Response._date = second, http_date(second)
        major, minor = self.req.version
        lines = [
            f"HTTP/{major}.{minor} {self.status}\r\nServer: {self.version}\r\nDate: {Response._date[1]}\r\n",
            "Connection: close\r\n" if self.should_close() else "Connection: keep-alive\r\n",
        ]
        if self.chunked:
            lines.append("Transfer-Encoding: chunked\r\n")
        return lines


def environ_of(request: Any, sock: Any, peer: Any, server: Any, base: dict[str, Any]) -> dict[str, Any]:
    """Build the environ as `gunicorn.http.wsgi.create` does; `base` is its constant part."""
    major, minor = request.version
    environ = {
        **base,
        "wsgi.input": request.body,
        "wsgi.url_scheme": request.scheme,
        "gunicorn.socket": sock,
        "REQUEST_METHOD": request.method,
        "QUERY_STRING": request.query,
        "RAW_URI": request.uri,
        "SERVER_PROTOCOL": f"HTTP/{major}.{minor}",
        "SCRIPT_NAME": "",
        "PATH_INFO": unquote_to_wsgi_str(request.path),
    }
    for name, value in request.headers:
        key = "HTTP_" + name.replace("-", "_")
        if key in ("HTTP_CONTENT_TYPE", "HTTP_CONTENT_LENGTH"):
            key = key[5:]
        environ[key] = f"{environ[key]},{value}" if key in environ else value
    if isinstance(peer, tuple):
        environ["REMOTE_ADDR"], environ["REMOTE_PORT"] = peer[0], str(peer[1])
        environ["SERVER_NAME"], environ["SERVER_PORT"] = server[0], str(server[1])
    else:  # a unix socket has neither; a port that no listener has, so that no Host header can name one
        environ.update(REMOTE_ADDR="", SERVER_NAME="localhost", SERVER_PORT="0")
    return environ
