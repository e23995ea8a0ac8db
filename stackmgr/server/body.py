"""Request bodies in chunks, decoded as they arrive."""

import re

from stackmgr.errors import SmallChunks
from stackmgr.limits import BODY_LIMIT_BYTES, FRAMING_LIMIT_BYTES
from stackmgr.server.request import BadRequest, ReceivedRequest, find_section_end

SIZE_LINE_LIMIT = 8192
CHUNKS_AT_ONCE = 128  # decoded in 0.2 ms, for which all other requests wait

# RFC 9112 section 7.1. Nearly every size line has no extensions.
_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,16})\r\n")
_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]++"
_QUOTED = rb'"(?:[\t !#-\[\]-~\x80-\xff]|\\[\t -~\x80-\xff])*"'
# No possessive group: before Python 3.11.3 it keeps half of a failed repetition, ";" of "1;".
_EXTENSION = rb"[ \t]*+;[ \t]*+%b(?:[ \t]*+=[ \t]*+(?:%b|%b))?" % (_TOKEN, _TOKEN, _QUOTED)
_EXTENDED_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,16})(?:%b)*\r\n" % _EXTENSION)


class ChunkedDecoder:
    """A chunked body, decoded in one pass.  Where its pieces are split changes nothing."""

    __slots__ = ("_framing", "_in_trailers", "_missing", "_request", "_searched", "content")

    def __init__(self, request: ReceivedRequest) -> None:
        self._request = request
        self.content = bytearray()
        self._missing = 0  # bytes of the present chunk, its CRLF included
        self._framing = 0  # bytes that are not content, so far
        self._searched = 0  # bytes of an unfinished line or of the trailers that hold no end of it
        self._in_trailers = False

    def feed(self, data: bytearray) -> bool:
        """Remove bytes of the body from *data*; return whether it is complete or exceeds the limit.

        While it removes some, there may be more.  Raises BadRequest or SmallChunks.
        """
        if not self._in_trailers:
            del data[: self._decode_chunks(data)]
        exceeds_limit = len(self.content) > BODY_LIMIT_BYTES
        return exceeds_limit or (self._in_trailers and self._remove_trailers(data))

    def _decode_chunks(self, data: bytearray) -> int:
        """Decode the chunks in *data* and return where the undecoded rest begins."""
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
                    raise BadRequest("end of a chunk")
                at += 2
                missing = 0
            line = _SIZE_LINE.match(data, at) or self._match_extended(data, at)
            if line is None:
                break
            self._searched = 0
            size = int(line[1], 16)
            self._framing += line.end() - at + 2
            at = line.end()
            if self._framing > FRAMING_LIMIT_BYTES:
                raise SmallChunks
            if size == 0:
                self._in_trailers = True
                break
            missing = size + 2
        self._missing = missing
        return at

    def _match_extended(self, data: bytearray, at: int) -> re.Match[bytes] | None:
        """Return the match of a size line with extensions, or None while the line is incomplete."""
        end = data.find(b"\r\n", at + self._searched)
        length = (len(data) if end < 0 else end) - at
        if length > SIZE_LINE_LIMIT:
            raise BadRequest("chunk size line too long")
        if end < 0:
            self._searched = max(0, length - 1)
            return None
        line = _EXTENDED_SIZE_LINE.match(data, at)
        if line is None:
            raise BadRequest("chunk size line")
        return line

    def _remove_trailers(self, data: bytearray) -> bool:
        if data.startswith(b"\r\n"):
            del data[:2]
            return True
        end = find_section_end(data, self._searched)
        if end == 0:
            self._searched = len(data)
            return False
        self._request.check_trailers(bytes(data[: end - 2]))
        del data[:end]
        return True
