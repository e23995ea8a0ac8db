"""The grammar of a request: its head, of request line and header fields, and a body in chunks.

Strict, because a proxy in front reads the same bytes: bytes that two parsers can read in two ways
are rejected. Every line ends with CRLF, no line is folded, a body's framing is stated once, and no
header field identifies the client or the mount point. One regular expression checks all lines.
gunicorn's parser in C accepts more (see `tests/measure`); once it does not, it replaces this
grammar. Each request that this parser accepts, gunicorn's Python parser reads alike: a test checks.
"""

import re
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes
from uuid import uuid4

from stackmgr.errors import InvalidRequest, SmallChunks
from stackmgr.limits import BODY_LIMIT_BYTES, FRAMING_LIMIT_BYTES

HEAD_LIMIT = 65_536  # bytes of a head, and of the trailers of a chunked body
FIELD_BYTES = 256  # in memory, of a field without its text
CACHED_NAME_LIMIT = 64  # bytes: longer names would let clients fill the cache with what they make up

FIELD_NAME = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]++"
FIELD_VALUE = r"[\t\x20-\x7e\x80-\xff]*+"
# RFC 9112 section 2.2 lets an empty line come first. A method is any token (RFC 9110 section 9.1).
_REQUEST_LINE = re.compile(rb"(?:\r\n)?([!#$%&'*+\-.^_`|~0-9A-Za-z]++) ([\x21-\x7e]++) HTTP/1\.([0-9])\r\n")
_FIELD_LINES = re.compile(rf"(?:{FIELD_NAME}:{FIELD_VALUE}\r\n)*+")
_DIGITS = re.compile(r"[0-9]+")
_REQUEST_ID = re.compile(rb"[\t\x20-\x7e\x80-\xff]+")
LENGTH_DIGITS = 19  # int() takes no more than 4300; a longer length exceeds every limit

# RFC 3986 section 3.2.2, but for addresses of a future IP version.
_HOST = r"(?:\[[0-9A-Fa-f:.]{2,45}\]|(?:[A-Za-z0-9._~!$&'()*+,;=-]++|%[0-9A-Fa-f]{2})+)"
_HOST_FIELD = re.compile(rf"(?:{_HOST})?(?::[0-9]{{0,5}})?")
# RFC 9112 section 3.2: two of the four forms of a request target. The others are "/..." and "*".
_ABSOLUTE_FORM = re.compile(rf"https?://{_HOST}(?::[0-9]{{0,5}})?((?:[/?].*)?)", re.IGNORECASE)
_AUTHORITY_FORM = re.compile(rf"{_HOST}:[0-9]{{1,5}}")

# RFC 9110 section 5.3: fields that are no lists, so that a second one makes the request ambiguous.
_SINGLE = {"HTTP_HOST", "CONTENT_TYPE", "CONTENT_LENGTH"}
# RFC 9110 section 6.5.1: fields that are not allowed in trailers.
_NO_TRAILER = {
    "HTTP_HOST", "CONTENT_LENGTH", "HTTP_TRANSFER_ENCODING", "HTTP_TRAILER", "HTTP_AUTHORIZATION", "HTTP_TE",
}  # fmt: skip

SIZE_LINE_LIMIT = 8192
CHUNKS_AT_ONCE = 128  # decoded in 0.2 ms, for which all other requests wait

# RFC 9112 section 7.1.
_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]++"
_QUOTED = rb'"(?:[\t !#-\[\]-~\x80-\xff]|\\[\t -~\x80-\xff])*"'
# No possessive group: before Python 3.11.3 it keeps half of a failed repetition, ";" of "1;".
_EXTENSION = rb"[ \t]*+;[ \t]*+%b(?:[ \t]*+=[ \t]*+(?:%b|%b))?" % (_TOKEN, _TOKEN, _QUOTED)
_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,16})(?:\r\n|(?:%b)+\r\n)" % _EXTENSION)


class HeadLimits(NamedTuple):
    """gunicorn's `limit_request_line`, `limit_request_fields` and `limit_request_field_size`."""

    line: int
    fields: int
    field: int


def section_end(data: bytearray, searched: int) -> int:
    """Return where the empty line that ends a head or trailers ends, or 0 while there is none.

    *searched* bytes of *data* have been searched before. Raises InvalidRequest for a section that is
    too long, or that has a bare line feed and so need never end.
    """
    end = data.find(b"\r\n\r\n", max(0, searched - 3)) + 4
    if (end if end > 3 else len(data)) > HEAD_LIMIT:
        raise InvalidRequest(at="head too long")
    if end > 3:
        return end
    start = searched - 1 if searched and data[searched - 1] == 13 else searched
    if data.count(b"\n", start) != data.count(b"\r\n", start):
        raise InvalidRequest(at="bare line feed")
    return 0


def id_and_method(head: bytes, field_limit: int) -> tuple[str, str]:
    """Return the id in a raw head, in lines of up to *field_limit* bytes, or a new one; and "HEAD" or ""."""
    # Only complete lines: half a line may be half an id.
    lines = head.rpartition(b"\r\n")[0].partition(b"\r\n\r\n")[0].split(b"\r\n")[1:]
    fields = (line.partition(b":") for line in lines if len(line) <= field_limit - 2)
    values = (text.strip(b" \t") for name, _, text in fields if name.lower() == b"x-request-id")
    value = b",".join(filter(None, values))
    request_id = value.decode("latin-1") if _REQUEST_ID.fullmatch(value) else str(uuid4())
    return request_id, "HEAD" if head.lstrip(b"\r\n").startswith(b"HEAD ") else ""


def _environ_name(name: str) -> str:
    """Return a field's name in the environ, or "" for one that imitates another: A_B, A-B."""
    if "_" in name:
        return ""
    key = name.upper().replace("-", "_")
    return key if key in ("CONTENT_TYPE", "CONTENT_LENGTH") else f"HTTP_{key}"


_cached_environ_name = lru_cache(maxsize=256)(_environ_name)


class ReceivedRequest:
    """A request whose head has arrived: environ, and length of its body, None if chunked."""

    def __init__(self, head: bytes, limits: HeadLimits) -> None:
        """Parse *head*, up to and including the empty line. Raises InvalidRequest."""
        self._limits = limits
        self.head_size = FIELD_BYTES * head.count(b"\n") + 2 * len(head)  # in memory, at most
        self.body: bytes | bytearray = b""  # as far as it has arrived
        line = _REQUEST_LINE.match(head)
        if line is None or line.end() - 2 > limits.line:
            raise InvalidRequest(at="request line")
        method, target, minor = line.groups()
        self.method = method.decode("ascii")
        self.version = (1, int(minor))
        self.environ: dict[str, Any] = self._parse_target(target.decode("ascii"))
        self.environ |= (fields := self._parse_fields(head[line.end() : -2]))
        # RFC 9112 section 3.2: HTTP/1.1 requires a Host field; no version allows a bad one.
        host = fields.get("HTTP_HOST", "" if self.version == (1, 0) else None)
        if host is None or not _HOST_FIELD.fullmatch(host):
            raise InvalidRequest(at="Host")
        self._parse_framing(fields)

    def _parse_framing(self, fields: dict[str, str]) -> None:
        connection = fields.get("HTTP_CONNECTION", "").lower()
        is_kept = self.version > (1, 0) or connection == "keep-alive"
        # No other request follows, or its start is unknown: after CONNECT, for example.
        self.must_close = self.method == "CONNECT" or "close" in connection or not is_kept
        self.length: int | None = 0
        self.expects_continue = False
        if "HTTP_EXPECT" in fields:
            if fields["HTTP_EXPECT"].lower() != "100-continue":
                raise InvalidRequest(at="Expect")
            self.expects_continue = self.version > (1, 0)
        if "HTTP_TRANSFER_ENCODING" in fields:
            coding = fields["HTTP_TRANSFER_ENCODING"].lower()
            # Only chunks: two parsers may disagree on the length with another coding.
            if coding != "chunked" or self.version == (1, 0) or "CONTENT_LENGTH" in fields:
                raise InvalidRequest(at="Transfer-Encoding")
            self.length = None
        elif "CONTENT_LENGTH" in fields:
            if not _DIGITS.fullmatch(fields["CONTENT_LENGTH"]):
                raise InvalidRequest(at="Content-Length")
            digits = fields["CONTENT_LENGTH"].lstrip("0")[:LENGTH_DIGITS] or "0"
            self.environ["CONTENT_LENGTH"], self.length = digits, int(digits)

    def _parse_target(self, uri: str) -> dict[str, Any]:
        """Accept the four forms of RFC 9112 section 3.2, none of which has a fragment."""
        target: str | None = uri
        if self.method == "CONNECT":
            target = "" if _AUTHORITY_FORM.fullmatch(uri) else None
        elif uri[0] != "/" and (uri, self.method) != ("*", "OPTIONS"):
            absolute = _ABSOLUTE_FORM.fullmatch(uri)
            target = absolute and absolute[1]
        if target is None or "#" in target:
            raise InvalidRequest(at="request target")
        path, _, query = target.partition("?")
        return {
            "REQUEST_METHOD": self.method,
            "PATH_INFO": unquote_to_bytes(path).decode("latin-1") if "%" in path else path,
            "QUERY_STRING": query,
            "RAW_URI": uri,
            "SERVER_PROTOCOL": f"HTTP/1.{self.version[1]}",
        }

    def _parse_fields(self, block: bytes) -> dict[str, str]:
        text, fields, limits = block.decode("latin-1"), dict[str, str](), self._limits
        if not _FIELD_LINES.fullmatch(text):
            raise InvalidRequest(at="field line")
        *lines, _ = text.split("\r\n")
        if len(lines) > limits.fields:
            raise InvalidRequest(at="too many fields")
        for line in lines:
            if len(line) > limits.field - 2:
                raise InvalidRequest(at="field too long")
            name, _, value = line.partition(":")
            key = _cached_environ_name(name) if len(name) <= CACHED_NAME_LIMIT else _environ_name(name)
            if not key:
                continue
            value = value.strip(" \t")
            if key in fields:
                if key in _SINGLE:
                    raise InvalidRequest(at="field repeated")
                # Two proxies could join two Idempotency-Keys in two ways: a second stack.  So two
                # count as none, which the application rejects; an empty request id is none.
                if key == "HTTP_X_REQUEST_ID" and not (value and fields[key]):
                    value = fields[key] or value
                else:
                    value = "" if key == "HTTP_IDEMPOTENCY_KEY" else f"{fields[key]},{value}"
            fields[key] = value
        return fields

    def check_trailers(self, block: bytes) -> None:
        """Check the field lines after a chunked body, which are then dropped. Raises InvalidRequest."""
        if not _NO_TRAILER.isdisjoint(self._parse_fields(block)):
            raise InvalidRequest(at="trailer")


class ChunkedDecoder:
    """A chunked body, decoded in one pass.  Where its pieces are split changes nothing."""

    def __init__(self, request: ReceivedRequest) -> None:
        self._request = request
        self.content = bytearray()
        self._missing = 0  # bytes of the present chunk, its CRLF included
        self._framing = 0  # bytes that are not content, so far
        self._searched = 0  # bytes of the trailers that hold no end of them
        self._in_trailers = False

    def feed(self, data: bytearray) -> bool:
        """Remove bytes of the body from *data*; return whether it is complete or exceeds the limit.

        While it removes some, there may be more.  Raises InvalidRequest or SmallChunks.
        """
        if not self._in_trailers:
            del data[: self._decode_chunks(data)]
        exceeds_limit = len(self.content) > BODY_LIMIT_BYTES
        return exceeds_limit or (self._in_trailers and self._remove_trailers(data))

    def _decode_chunks(self, data: bytearray) -> int:
        content, at, end = self.content, 0, len(data)
        missing = self._missing
        for _ in range(CHUNKS_AT_ONCE):
            if missing:
                take = min(missing - 2, end - at, BODY_LIMIT_BYTES + 1 - len(content))
                content += data[at : at + take]
                at += take
                missing -= take
                if missing > 2 or end - at < 2 or len(content) > BODY_LIMIT_BYTES:
                    break
                if not data.startswith(b"\r\n", at):
                    raise InvalidRequest(at="end of a chunk")
                at += 2
                missing = 0
            line = _SIZE_LINE.match(data, at, at + SIZE_LINE_LIMIT + 2)
            if line is None:
                if end > at + SIZE_LINE_LIMIT + 1 or data.find(b"\r\n", at) >= 0:
                    raise InvalidRequest(at="chunk size line")
                break
            size = int(line[1], 16)
            self._framing += line.end() - at + 2
            at = line.end()
            if self._framing > FRAMING_LIMIT_BYTES:
                raise SmallChunks
            if size == 0:
                at -= 2  # so that the trailers begin with the end of a line, and end with two
                self._in_trailers = True
                break
            missing = size + 2
        self._missing = missing
        return at

    def _remove_trailers(self, data: bytearray) -> bool:
        if end := section_end(data, self._searched):
            self._request.check_trailers(bytes(data[2 : end - 2]))
            del data[:end]
        self._searched = len(data)
        return end > 0
