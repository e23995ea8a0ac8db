"""A response of the application on its way to the client: status line, header fields, framing of the body."""

import re
from collections.abc import Callable
from time import time
from typing import Any

from gunicorn.util import http_date

from stackmgr.server.connection import ClientConnection
from stackmgr.server.request import FIELD_NAME, FIELD_VALUE, ReceivedRequest

# RFC 9110 section 7.6.1: fields about the connection are the server's to send.
_HOP_BY_HOP = {
    "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailers",
    "transfer-encoding", "upgrade", "server", "date",
}  # fmt: skip
_STATUS = re.compile(rf"[2-5][0-9]{{2}} {FIELD_VALUE}")  # 1xx is never final
_FIELDS = re.compile(rf"(?:{FIELD_NAME}: {FIELD_VALUE}\r\n)*+")
_LENGTH = re.compile(r"[0-9]{1,18}")
_BODILESS = {"204", "304"}

_date = (0, "")


def _constant_fields() -> str:
    """Return the fields that are the same for every response of this second."""
    global _date  # noqa: PLW0603 - two threads that make it at once make the same
    now = int(time())
    second, text = _date
    if second != now:
        text = f"Server: gunicorn\r\nDate: {http_date(now)}\r\n"
        _date = now, text
    return text


class ResponseWriter:
    """The WSGI side of a response: `start_response` and the pieces of the body.

    The attributes without an underscore are those that gunicorn's access log and hooks read.
    """

    __slots__ = (
        "_bodiless", "_chunked", "_conn", "_fields", "_length", "_worker", "headers", "must_close", "request",
        "sent", "status",
    )  # fmt: skip

    def __init__(self, request: ReceivedRequest, conn: ClientConnection, worker: Any) -> None:
        self.request = request
        self._conn = conn
        self._worker = worker
        self.status = ""
        self.headers: list[tuple[str, str]] = []
        self.must_close = request.must_close
        self.sent = 0  # bytes of the body
        self._fields: str | None = None  # until they are queued
        self._length: int | None = None
        self._bodiless = False  # no body may be sent, whatever the application returns
        self._chunked = False

    def start_response(
        self, status: str, headers: list[tuple[str, str]], exc_info: Any = None
    ) -> Callable[[bytes], None]:
        """Take status and header fields, as PEP 3333 says.

        Raises ValueError or TypeError for what would make the response invalid.
        """
        if self.status and (exc_info is None or self._fields is None):
            raise exc_info[1] if exc_info else AssertionError("start_response was called twice")
        kept, fields, length = [], "", None
        for name, value in headers:
            lower = name.lower()
            if lower in _HOP_BY_HOP:
                continue
            if lower == "content-length":
                if status[:3] == "204":  # RFC 9110 section 8.6
                    continue
                if length is not None or not _LENGTH.fullmatch(value):
                    raise ValueError("the Content-Length of the response is malformed")
                length = int(value)
            kept.append((name, value))
            fields += name + ": " + value + "\r\n"
        if not _STATUS.fullmatch(status) or not _FIELDS.fullmatch(fields):
            raise ValueError("the status or a header field of the response is malformed")
        self.status, self.headers, self._fields, self._length = status, kept, fields, length
        self._bodiless = self.request.method == "HEAD" or status[:3] in _BODILESS
        self._chunked = length is None and not self._bodiless and self.request.version > (1, 0)
        if length is None and not self._bodiless and not self._chunked:
            self.must_close = True
        return self._write_now

    def _write_now(self, piece: bytes) -> None:
        """Send a piece at once: the `write` callable of PEP 3333. Blocks while the client is behind."""
        self.write(piece)
        self._conn.flush()
        self._conn.wait_for_client()

    def _queue_head(self) -> None:
        if self._fields is None:
            if not self.status:
                raise RuntimeError("the application did not call start_response")
            return
        if not self._worker.alive:  # later, the client has read that the connection stays open
            self.must_close = True
        connection = "close" if self.must_close else "keep-alive"
        coding = "Transfer-Encoding: chunked\r\n" if self._chunked else ""
        minor = min(self.request.version[1], 1)
        head = (
            f"HTTP/1.{minor} {self.status}\r\n{_constant_fields()}Connection: {connection}\r\n"
            f"{coding}{self._fields}\r\n"
        )
        self._fields = None
        self._conn.queue(head.encode("latin-1"))

    def write(self, piece: bytes) -> None:
        """Queue a piece of the body, the head before the first; never more than was announced."""
        if not piece:
            return
        self._queue_head()
        if self._length is not None:
            piece = piece[: self._length - self.sent]
        if self._bodiless or not piece:
            return
        self.sent += len(piece)
        self._conn.queue(b"%x\r\n%b\r\n" % (len(piece), piece) if self._chunked else piece)

    def end(self) -> None:
        """Queue what the last piece leaves to be sent. A body shorter than announced ends the connection."""
        self._queue_head()
        if self._chunked:
            self._conn.queue(b"0\r\n\r\n")
        elif self._length is not None and self.sent < self._length and not self._bodiless:
            self.must_close = True
