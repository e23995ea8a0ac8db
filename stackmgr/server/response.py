"""Responses: of the application through WSGI, and errors of the server's own."""

import re
from collections.abc import Callable
from functools import lru_cache
from http import HTTPStatus
from time import time
from typing import Any

from gunicorn.util import http_date

from stackmgr.errors import ServiceError, error_object
from stackmgr.server.request import FIELD_NAME, FIELD_VALUE, ReceivedRequest

_OWN = {"connection", "date", "keep-alive", "server", "transfer-encoding"}  # fields that the server sends
_STATUS = re.compile(rf"(?!204|304)[2-5][0-9]{{2}} {FIELD_VALUE}")  # final, and with a body
_FIELDS = re.compile(rf"(?:{FIELD_NAME}: {FIELD_VALUE}\r\n)*+")
_LENGTH = re.compile(r"[0-9]{1,18}")


@lru_cache(maxsize=1)
def _constant_fields(second: int) -> str:
    """Return the fields that are the same for every response of a second."""
    return f"Server: gunicorn\r\nDate: {http_date(second)}\r\n"


def error_response(error: ServiceError, request_id: str, *, has_body: bool) -> bytes:
    """Return a response with an Error object, after which the connection is closed."""
    body = error_object(error.code, error.message, request_id)
    status = HTTPStatus(error.status)
    fields = "".join(f"{name}: {value}\r\n" for name, value in error.headers.items())
    head = (
        f"HTTP/1.1 {status} {status.phrase}\r\nDate: {http_date()}\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nCache-Control: no-store\r\n{fields}"
        f"X-Request-Id: {request_id}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode("latin-1") + (body if has_body else b"")


class Response:
    """The WSGI side of one response, which is sent once all of it is there."""

    __slots__ = ("_fields", "_length", "pieces", "status")

    def __init__(self) -> None:
        self.status = ""
        self._fields = ""
        self._length: int | None = None  # announced by the application
        self.pieces: list[bytes] = []  # of the body

    def start_response(
        self, status: str, headers: list[tuple[str, str]], exc_info: Any = None
    ) -> Callable[[bytes], None]:
        """Take status and header fields, as PEP 3333 says.  Raises ValueError or TypeError."""
        if self.status and exc_info is None:
            raise AssertionError("start_response was called twice")
        fields, length = "", None
        for name, value in headers:
            lower = name.lower()
            if lower in _OWN:
                continue
            if lower == "content-length":
                if length is not None or not _LENGTH.fullmatch(value):
                    raise ValueError("the Content-Length of the response is malformed")
                length = int(value)
            fields += name + ": " + value + "\r\n"
        if not _STATUS.fullmatch(status) or not _FIELDS.fullmatch(fields):
            raise ValueError("the status or a header field of the response is malformed")
        self.status, self._fields, self._length = status, fields, length
        return self.pieces.append

    def encode(self, request: ReceivedRequest, *, must_close: bool) -> tuple[bytes, bool]:
        """Return what is to be sent, and whether the connection must be closed after it.

        It must if the body is shorter than announced; what is longer is not sent.  Raises RuntimeError.
        """
        if not self.status:
            raise RuntimeError("the application did not call start_response")
        body, fields = b"".join(self.pieces), self._fields
        if request.method == "HEAD":
            body = b""
        elif self._length is None:
            fields += f"Content-Length: {len(body)}\r\n"
        else:
            body = body[: self._length]
            must_close |= len(body) < self._length
        minor = min(request.version[1], 1)
        connection = "close" if must_close else "keep-alive"
        constant = _constant_fields(int(time()))
        head = f"HTTP/1.{minor} {self.status}\r\n{constant}Connection: {connection}\r\n{fields}\r\n"
        return head.encode("latin-1") + body, must_close
