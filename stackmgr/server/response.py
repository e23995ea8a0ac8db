"""Responses: of the application through WSGI, and errors of the server's own."""

import re
from collections.abc import Callable
from functools import lru_cache
from http import HTTPStatus
from time import time

from gunicorn.util import http_date

from stackmgr.errors import ServiceError, error_object
from stackmgr.server.request import FIELD_NAME, FIELD_VALUE

_OWN = {"connection", "date", "keep-alive", "server", "transfer-encoding"}  # fields that the server sends
_STATUS = re.compile(rf"(?!204|304)[2-5][0-9]{{2}} {FIELD_VALUE}")  # final, and with a body
_FIELDS = re.compile(rf"(?:{FIELD_NAME}: {FIELD_VALUE}\r\n)*+")


@lru_cache(maxsize=1)
def _constant_fields(second: int) -> str:
    return f"Server: gunicorn\r\nDate: {http_date(second)}\r\n"


class Response:
    """The WSGI side of one response, which is sent once all of it is there."""

    def __init__(self) -> None:
        self.status = ""
        self._fields = ""
        self._length: int | None = None  # announced by the application: to HEAD it sends no body
        self.pieces: list[bytes] = []  # of the body

    def start_response(
        self, status: str, headers: list[tuple[str, str]], exc_info: object = None
    ) -> Callable[[bytes], None]:
        """Take status and header fields, as PEP 3333 says.  Raises ValueError or TypeError."""
        if self.status and exc_info is None:
            raise AssertionError("start_response was called twice")
        fields, length = "", None
        for name, value in headers:
            lower = name.lower()
            if lower == "content-length":
                length = int(value)
            elif lower not in _OWN:
                fields += name + ": " + value + "\r\n"
        if not _STATUS.fullmatch(status) or not _FIELDS.fullmatch(fields):
            raise ValueError("the status or a header field of the response is malformed")
        self.status, self._fields, self._length = status, fields, length
        return self.pieces.append

    def encode(self, minor: int, method: str, *, must_close: bool) -> bytes:
        """Return what is to be sent for a request of HTTP/1.*minor*.  Raises RuntimeError."""
        if not self.status:
            raise RuntimeError("the application did not call start_response")
        body = b"".join(self.pieces)
        length = len(body)
        if method == "HEAD":
            body, length = b"", length if self._length is None else self._length
        connection = "close" if must_close else "keep-alive"
        head = (
            f"HTTP/1.{min(minor, 1)} {self.status}\r\n{_constant_fields(int(time()))}"
            f"Connection: {connection}\r\n{self._fields}Content-Length: {length}\r\n\r\n"
        )
        return head.encode("latin-1") + body


def error_response(error: ServiceError, request_id: str, method: str) -> bytes:
    response, status = Response(), HTTPStatus(error.status)
    fields = {"Content-Type": "application/json", "Cache-Control": "no-store", "X-Request-Id": request_id}
    response.start_response(f"{status} {status.phrase}", [*fields.items(), *error.headers.items()])
    response.pieces.append(error_object(error.code, error.message, request_id))
    return response.encode(1, method, must_close=True)
