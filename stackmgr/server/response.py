"""An answer of the application on its way to the client: status line, fields, framing of the body."""

import re
from collections.abc import Callable
from time import time
from typing import Any

from gunicorn.util import http_date

from stackmgr.server.request import FIELD_NAME, FIELD_VALUE, Request

# RFC 9110 section 7.6.1: what concerns the connection is the server's to say.
_HOP_BY_HOP = {
    "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailers",
    "transfer-encoding", "upgrade", "server", "date",
}  # fmt: skip
_STATUS = re.compile(rf"[1-9][0-9]{{2}} {FIELD_VALUE}")
_FIELDS = re.compile(rf"(?:{FIELD_NAME}: {FIELD_VALUE}\r\n)*+")
_BODILESS = {"204", "304"}

_date = (0, "")


def _constant_fields() -> str:
    """Return the fields that are the same for every answer of this second."""
    global _date  # noqa: PLW0603 - two threads that make it at once make the same
    now = int(time())
    second, text = _date
    if second != now:
        text = f"Server: gunicorn\r\nDate: {http_date(now)}\r\n"
        _date = now, text
    return text


class Response:
    """What `start_response` and the body's pieces become. *send* takes bytes and does not wait.

    The attributes without an underscore are those that gunicorn's access log and hooks read.
    """

    __slots__ = (
        "_chunked",
        "_fields",
        "_length",
        "_mute",
        "_send",
        "headers",
        "must_close",
        "request",
        "sent",
        "status",
    )

    def __init__(self, request: Request, send: Callable[[bytes], None]) -> None:
        self.request = request
        self._send = send
        self.status = ""
        self.headers: list[tuple[str, str]] = []
        self.must_close = request.must_close
        self.sent = 0  # bytes of the body
        self._fields: str | None = None  # until they are sent
        self._length: int | None = None
        self._mute = False  # a body there must not be, whatever the application gives
        self._chunked = False

    def start_response(
        self, status: str, headers: list[tuple[str, str]], exc_info: Any = None
    ) -> Callable[[bytes], None]:
        """Take status and headers, as PEP 3333 says. Raises ValueError for what would break the answer."""
        if self.status and (exc_info is None or self._fields is None):
            raise exc_info[1] if exc_info else AssertionError("start_response was called twice")
        self.headers = kept = [pair for pair in headers if pair[0].lower() not in _HOP_BY_HOP]
        fields = "".join([f"{name}: {value}\r\n" for name, value in kept])
        if not _STATUS.fullmatch(status) or not _FIELDS.fullmatch(fields):
            raise ValueError("the status or a header of the answer is malformed")
        self.status, self._fields, self._length = status, fields, None
        for name, value in kept:
            if name.lower() == "content-length":
                self._length = int(value)
        self._mute = self.request.method == "HEAD" or status[:3] in _BODILESS or status[0] == "1"
        self._chunked = self._length is None and not self._mute and self.request.version > (1, 0)
        if self._length is None and not self._mute and not self._chunked:
            self.must_close = True
        return self.write

    def _send_head(self) -> None:
        if self._fields is None:
            return
        connection = "close" if self.must_close else "keep-alive"
        coding = "Transfer-Encoding: chunked\r\n" if self._chunked else ""
        minor = self.request.version[1]
        head = (
            f"HTTP/1.{minor} {self.status}\r\n{_constant_fields()}Connection: {connection}\r\n"
            f"{coding}{self._fields}\r\n"
        )
        self._fields = None
        self._send(head.encode("latin-1"))

    def write(self, piece: bytes) -> None:
        """Send a piece of the body, the head before the first; never more than was announced."""
        self._send_head()
        if self._length is not None:
            piece = piece[: self._length - self.sent]
        if self._mute or not piece:
            return
        self.sent += len(piece)
        self._send(b"%x\r\n%b\r\n" % (len(piece), piece) if self._chunked else piece)

    def end(self) -> None:
        """Send what the last piece leaves to be sent. A body shorter than announced ends the connection."""
        self._send_head()
        if self._chunked:
            self._send(b"0\r\n\r\n")
        elif self._length is not None and self.sent < self._length and not self._mute:
            self.must_close = True
