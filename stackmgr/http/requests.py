"""Read a request: header fields, path, query string, and the body with its JSON Schema.

The schemas are draft-04, in which 1.0 is not an integer, and are compiled once.  JSON is parsed
strictly: no NaN, no repeated member, UTF-8 only.
"""

import json
import re
from collections.abc import Callable
from typing import Any, cast
from urllib.parse import unquote, unquote_to_bytes

import falcon
import fastjsonschema

from stackmgr import errors
from stackmgr.http.schemas import Document, inline_references, read_schema
from stackmgr.limits import BODY_LIMIT_BYTES, CANONICAL_UUID, DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE
from stackmgr.reasons import ReasonSlug
from stackmgr.stacks import cursor
from stackmgr.stacks.cursor import Position

# RFC 9110 section 11.4: a scheme in any case, spaces, one token68.
_BEARER = re.compile(r"bearer +([A-Za-z0-9._~+/-]+=*)", re.IGNORECASE | re.ASCII)
# W3C Trace Context: version, trace id, parent id, flags.  Versions above 00 may append more; ff is
# invalid, as are repeated fields, which are joined by a comma.
_TRACEPARENT = re.compile(
    r"(?!ff)([0-9a-f]{2})-((?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16})-([0-9a-f]{2})(-[^,]*)?"
)
_UUID = re.compile(CANONICAL_UUID, re.IGNORECASE)
_ORIGIN = re.compile(r"\Ahttps?://[^/?]*", re.IGNORECASE)  # in the absolute form of a request target
_ESCAPED_SLASH = re.compile("%2f", re.IGNORECASE)
_MALFORMED_ESCAPE = re.compile(r"%(?![0-9a-fA-F]{2})")
_DIGITS = re.compile(r"[0-9]+")

# Whatever its size, a valid body has at most 98 strings, and outside them 92 commas and 33
# brackets.  Up to _COUNTED_BYTES, which take 0.1 ms to parse, nothing is counted.
_COUNTED_BYTES = 4096
_MAX_STRUCTURE = 1000
_MAX_DIGITS = 4300  # of an integer: int() rejects longer ones

# The ending of a slug for each keyword of the schemas; that of another keyword is the keyword.
_KEYWORD_SLUGS = {
    "additionalProperties": "unknown_field",
    "enum": "unknown",
    "maxItems": "too_long",
    "maximum": "range",
    "minItems": "empty",
    "minLength": "empty",
    "minProperties": "empty",
    "minimum": "range",
    "pattern": "form",
    "required": "missing_field",
    "type": "type",
}


def routed_path(req: falcon.Request) -> str:
    """Return the decoded path, in which an escaped slash stays `%2F`: it is data (RFC 3986).

    Only the request target has it.  The target does not count if the path was rewritten.
    """
    target = req.env.get("RAW_URI") or req.env.get("REQUEST_URI") or ""
    raw = _ORIGIN.sub("", target).partition("?")[0] if "%2" in target else ""
    if not raw or unquote(raw) != req.root_path + req.path:
        return req.path
    return unquote(_ESCAPED_SLASH.sub("%252F", raw)).removeprefix(req.root_path)


def parse_credential(authorization: str) -> str:
    """Return the credential in the value of an Authorization header.  Raises Unauthorized."""
    match = _BEARER.fullmatch(authorization)
    if match is None:
        raise errors.Unauthorized(ReasonSlug.AUTHORIZATION_HEADER)
    return match[1]


def parse_trace_context(req: falcon.Request) -> dict[str, str] | None:
    """Return the field of the W3C Trace Context to send with calls of this request, or None.

    The service records no spans: it forwards `traceparent` unchanged, a later version as 00.
    """
    match = _TRACEPARENT.fullmatch(req.env.get("HTTP_TRACEPARENT", ""))
    if match is None:
        return None
    version, ids, flags, more = match.groups()
    if version == "00":
        return None if more else {"traceparent": match[0]}
    return {"traceparent": f"00-{ids}-{int(flags, 16) & 1:02x}"}


def parse_stack_id(text: str) -> str:
    """Return the stack id in *text*, in lowercase.  Raises InvalidStackId."""
    if not _UUID.fullmatch(text):
        raise errors.InvalidStackId(ReasonSlug.STACK_ID)
    return text.lower()


def parse_idempotency_key(req: falcon.Request) -> str:
    """Return the Idempotency-Key unchanged.  Raises InvalidIdempotencyKey."""
    key: str = req.env.get("HTTP_IDEMPOTENCY_KEY", "")
    if not key.strip():
        raise errors.InvalidIdempotencyKey(ReasonSlug.IDEMPOTENCY_KEY_BLANK)
    return key


def check_content_length(req: falcon.Request) -> None:
    if (req.content_length or 0) > BODY_LIMIT_BYTES:
        raise errors.PayloadTooLarge(ReasonSlug.CONTENT_LENGTH)


def read_body(req: falcon.Request) -> bytes:
    """Return the complete body of a JSON request.

    Raises InvalidBody for another media type, a content coding or an incomplete body, and
    PayloadTooLarge.  It reads at most one byte more than the limit.
    """
    media_type = req.env.get("CONTENT_TYPE") or "application/json"
    if media_type.partition(";")[0].strip().lower() != "application/json":
        raise errors.InvalidBody(ReasonSlug.MEDIA_TYPE)
    if (req.env.get("HTTP_CONTENT_ENCODING") or "identity").strip().lower() != "identity":
        raise errors.InvalidBody(ReasonSlug.CONTENT_ENCODING)
    content_length = req.content_length
    if content_length is None and not req.env.get("wsgi.input_terminated"):
        return b""
    size = BODY_LIMIT_BYTES + 1 if content_length is None else content_length
    try:
        # Not Falcon's stream, which reads a chunked body as empty.
        received: bytes = req.env["wsgi.input"].read(size)
    except OSError as ex:
        raise errors.InvalidBody(ReasonSlug.FRAMING) from ex
    if len(received) > BODY_LIMIT_BYTES:
        raise errors.PayloadTooLarge(ReasonSlug.BODY)
    if content_length is not None and len(received) != content_length:
        raise errors.InvalidBody(ReasonSlug.TRUNCATED)
    return received


def _decode(text: str) -> str:
    if _MALFORMED_ESCAPE.search(text):
        raise errors.InvalidPagination(ReasonSlug.PERCENT_ENCODING)
    try:
        return unquote_to_bytes(text).decode("utf-8")
    except UnicodeDecodeError as ex:
        raise errors.InvalidPagination(ReasonSlug.PERCENT_ENCODING) from ex


def _parse_limit(text: str) -> int:
    if not _DIGITS.fullmatch(text):
        raise errors.InvalidPagination(ReasonSlug.LIMIT_FORM)
    digits = text.lstrip("0")
    # Check the length first: int() raises ValueError for thousands of digits.
    if not 1 <= len(digits) <= len(str(MAX_PAGE_SIZE)) or int(digits) > MAX_PAGE_SIZE:
        raise errors.InvalidPagination(ReasonSlug.LIMIT_RANGE)
    return int(digits)


def parse_page_query(query_string: str) -> tuple[Position, int]:
    """Return the start position and the size of the requested page.  Raises InvalidPagination.

    Falcon's parser would hide invalid queries: it joins repeated names and replaces malformed
    escapes.
    """
    after, limit = cursor.START, DEFAULT_PAGE_SIZE
    seen = set()
    for piece in filter(None, query_string.split("&")):
        raw_name, _, raw_value = piece.partition("=")
        name, value = _decode(raw_name), _decode(raw_value)
        if name in seen:
            raise errors.InvalidPagination(ReasonSlug.PARAMETER_REPEATED)
        seen.add(name)
        if name == "cursor":
            after = cursor.decode(value)
        elif name == "limit":
            limit = _parse_limit(value)
        else:
            raise errors.InvalidPagination(ReasonSlug.PARAMETER_UNKNOWN)
    return after, limit


def compile_schema(name: str) -> Callable[[Any], Any]:
    """Return the compiled validator of `schemas/<name>`.  It raises JsonSchemaValueException."""
    document = inline_references(read_schema(name))
    return cast("Callable[[Any], Any]", fastjsonschema.compile(document, use_default=False))


def _unique_members(pairs: list[tuple[str, Any]]) -> Document:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise errors.InvalidBody(ReasonSlug.REPEATED_MEMBER)
    return document


def _parse_integer(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise ValueError("too many digits")
    return int(text[:20])


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique_members,
    parse_constant=int,  # raises ValueError for NaN and Infinity
    # The first 20 characters are enough for a weight, and more would take long to convert.
    parse_float=lambda text: float(text[:20].rstrip("eE+-")),
    parse_int=_parse_integer,
)


def _check_structure(body: bytes) -> None:
    """Reject what has more structure than any valid body, by searches for single bytes.

    Parsing 256 KiB of brackets would take the worker's thread 0.1 s.  This takes up to 1 ms.
    """
    if b"\\" in body:
        body = body.replace(rb"\\", b"").replace(rb"\"", b"")
    pieces = body.split(b'"', _MAX_STRUCTURE)  # the last, even, is the rest, and counts as outside
    outside = b"".join(pieces[::2])
    commas, brackets = outside.count(b","), outside.count(b"[") + outside.count(b"{")
    if commas + brackets <= _MAX_STRUCTURE:
        return
    if brackets > 2 * commas:
        raise errors.InvalidBody(ReasonSlug.NOT_JSON)  # RFC 8259 section 9 allows a bound on nesting
    raise errors.InvalidConfiguration(ReasonSlug.BODY_STRUCTURE)


def parse_json(body: bytes) -> Any:
    """Return the document in *body*.

    Raises InvalidBody, or InvalidConfiguration if it is too large to be parsed for a closer reason.
    """
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as ex:
        raise errors.InvalidBody(ReasonSlug.NOT_UTF8) from ex
    if len(body) > _COUNTED_BYTES:
        _check_structure(body)
    try:
        return _DECODER.decode(text)
    except (ValueError, RecursionError) as ex:
        raise errors.InvalidBody(ReasonSlug.NOT_JSON) from ex


def rule_slug(path: list[str], keyword: str, value: Any) -> str:
    """Return the slug of a broken rule, as `weight_bps_range`, `schedule_null` or
    `body_unknown_field`.

    *path* leads from the body to the *value* that breaks *keyword*: names of the schema and array
    indexes, so no part of a slug comes from the request.
    """
    field, *parents = *reversed(path), "body"
    if field.isdigit():
        field = f"{parents[0]}_item"
    ending = "null" if keyword == "type" and value is None else _KEYWORD_SLUGS.get(keyword, keyword)
    return f"{field}_{ending}"


class RequestSchema:
    def __init__(self, name: str) -> None:
        self._validate = compile_schema(name)

    def parse(self, body: bytes) -> Document:
        """Return the document in *body*.  Raises InvalidBody or InvalidConfiguration."""
        document: Document = parse_json(body)
        try:
            self._validate(document)
        except fastjsonschema.JsonSchemaValueException as ex:
            # The exception has the value.  Its path and message start with `data`, the document.
            at = f"body{ex.message.removeprefix('data')}".removeprefix("body.")
            raise errors.InvalidConfiguration(rule_slug(ex.path[1:], str(ex.rule), ex.value), at) from ex
        return document
