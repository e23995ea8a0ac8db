"""A request's head: what is one, and what it says.

Strict, because a proxy in front reads the same bytes: what two readers can take in two ways is refused. Every
line ends with CRLF, no line is folded, nothing names the framing of a body twice, and no header says who the
client is or where the application is mounted. One regular expression looks at all lines, in 3 us; gunicorn's
parser takes 27 us for a small request in Python, and 18 in C, where it ends lines at bare line feeds. What
this one takes, gunicorn's Python parser takes and reads alike: a test holds the two together.
"""

import re
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes

from gunicorn.http.body import ChunkedReader
from gunicorn.http.errors import ParseException
from gunicorn.util import split_request_uri

from stackmgr.server.body import Inbox

FIELD_NAME = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]++"
FIELD_VALUE = r"[\t\x20-\x7e\x80-\xff]*+"
# RFC 9112 section 2.2 lets an empty line come first. Methods are those of the registry: in capitals.
_REQUEST_LINE = re.compile(rb"(?:\r\n)?([!$%&'*+\-.^_`|~0-9A-Z]{3,20}) ([\x21-\x7e]++) HTTP/1\.([0-9])\r\n")
_FIELD_LINES = re.compile(rf"(?:{FIELD_NAME}:{FIELD_VALUE}\r\n)*+")
_DIGITS = re.compile(r"[0-9]{1,18}")

# RFC 9110 section 5.3: fields that are no lists, so that a second one makes the request ambiguous.
_SINGLE = {"HTTP_HOST", "CONTENT_TYPE", "CONTENT_LENGTH"}
# RFC 9110 section 6.5.1: what no trailer may say.
_NO_TRAILER = {
    "HTTP_HOST", "CONTENT_LENGTH", "HTTP_TRANSFER_ENCODING", "HTTP_TRAILER", "HTTP_AUTHORIZATION", "HTTP_TE",
}  # fmt: skip


class BadRequest(ParseException):  # type: ignore[misc]
    """The client broke HTTP. Its text names the cause, never the client's bytes."""


class Limits(NamedTuple):
    """gunicorn's `limit_request_line`, `limit_request_fields` and `limit_request_field_size`."""

    line: int
    fields: int
    field: int


@lru_cache(maxsize=256)
def _environ_name(name: str) -> str:
    """Return a field's name in the environ, or nothing for one that would pass for another: A_B for A-B."""
    if "_" in name:
        return ""
    key = name.upper().replace("-", "_")
    return key if key in ("CONTENT_TYPE", "CONTENT_LENGTH") else f"HTTP_{key}"


class Request:
    """A request whose head has arrived. `environ` has its part of PEP 3333's, `length` that of its body.

    `length` is None for a chunked body, for which `chunks` reads. Of gunicorn's request it has what the
    hooks, the access log and the reader of chunks ask for.
    """

    __slots__ = (
        "_limits",
        "body",
        "chunks",
        "environ",
        "expects_continue",
        "length",
        "limit_request_field_size",
        "max_buffer_headers",
        "method",
        "must_close",
        "path",
        "query",
        "trailers",
        "unreader",
        "uri",
        "version",
    )  # fmt: skip

    def __init__(self, head: bytes, limits: Limits) -> None:
        """Parse *head*, up to and including the empty line. Raises BadRequest."""
        self._limits = limits
        line = _REQUEST_LINE.match(head)
        if line is None or line.end() - 2 > limits.line:
            raise BadRequest("request line")
        method, target, minor = line.groups()
        self.method = method.decode("ascii")
        self.version = (1, int(minor))
        self._read_target(target.decode("ascii"))
        self.environ = fields = self._fields(head[line.end() : -2])
        self.trailers: Any = []
        self.body: Any = None
        # Whether no other request is wanted, or can be made out, on this connection: after CONNECT, say.
        self.must_close = self.method == "CONNECT"
        connection = fields.get("HTTP_CONNECTION", "").lower()
        if (self.version == (1, 0) and connection != "keep-alive") or "close" in connection:
            self.must_close = True
        self.unreader = Inbox(b"")
        self.length: int | None = 0
        self.expects_continue = False
        if "HTTP_EXPECT" in fields:
            self._read_expectation(fields["HTTP_EXPECT"])
        if "HTTP_TRANSFER_ENCODING" in fields:
            self._read_coding(fields["HTTP_TRANSFER_ENCODING"])
        elif "CONTENT_LENGTH" in fields:
            if not _DIGITS.fullmatch(fields["CONTENT_LENGTH"]):
                raise BadRequest("Content-Length")
            self.length = int(fields["CONTENT_LENGTH"])

    @property
    def headers(self) -> list[tuple[str, str]]:
        """The fields under their own names, as the access log wants them."""
        return [(key.removeprefix("HTTP_").replace("_", "-"), self.environ[key]) for key in self.environ]

    def _read_target(self, target: str) -> None:
        """Take the request target apart. RFC 9112 section 3.2 has four forms of it."""
        self.uri = target
        if target[0] == "/" and "#" not in target:
            path, _, self.query = target.partition("?")
        elif target[0] == "/" or "://" in target or (target, self.method) == ("*", "OPTIONS"):
            try:
                parts = split_request_uri(target)
            except ValueError:
                raise BadRequest("request target") from None
            path, self.query = parts.path, parts.query
        elif self.method == "CONNECT":
            path, self.query = "", ""
        else:
            raise BadRequest("request target")
        self.path = unquote_to_bytes(path).decode("latin-1") if "%" in path else path

    def _fields(self, block: bytes) -> dict[str, str]:
        """Return field lines as a part of the environ, repeated ones as a list in one value."""
        text = block.decode("latin-1")
        if not _FIELD_LINES.fullmatch(text):
            raise BadRequest("field line")
        lines = text.split("\r\n")
        lines.pop()
        if len(lines) > self._limits.fields:
            raise BadRequest("too many fields")
        fields: dict[str, str] = {}
        for line in lines:
            name, _, value = line.partition(":")
            key = _environ_name(name)
            if len(line) + 2 > self._limits.field:
                raise BadRequest("field too long")
            if not key:
                continue
            value = value.strip(" \t")
            if key in fields:
                if key in _SINGLE:
                    raise BadRequest("field repeated")
                value = f"{fields[key]},{value}"
            fields[key] = value
        return fields

    def _read_expectation(self, value: str) -> None:
        if value.lower() != "100-continue":
            raise BadRequest("Expect")
        self.expects_continue = self.version > (1, 0)

    def _read_coding(self, value: str) -> None:
        """Accept nothing but chunks: a body in another coding has a length that two readers may dispute."""
        if value.lower() != "chunked" or self.version == (1, 0) or "CONTENT_LENGTH" in self.environ:
            raise BadRequest("Transfer-Encoding")
        self.length = None
        self.limit_request_field_size = self._limits.field
        self.max_buffer_headers = self._limits.fields * self._limits.field
        self.chunks = ChunkedReader(self, self.unreader)

    def parse_headers(self, data: bytes, from_trailer: bool) -> list[tuple[str, str]]:
        """Check the trailers of a chunked body, for gunicorn's reader of chunks. Raises BadRequest."""
        fields = self._fields(data + b"\r\n")
        if not _NO_TRAILER.isdisjoint(fields):
            raise BadRequest("trailer")
        return list(fields.items())
