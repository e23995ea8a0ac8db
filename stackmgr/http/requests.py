"""Parse and check a request's header fields, path, query string and body."""

import re
from urllib.parse import unquote_to_bytes

import falcon

from stackmgr.errors import (
    InvalidBody,
    InvalidIdempotencyKey,
    InvalidPagination,
    InvalidStackId,
    PayloadTooLarge,
    Unauthorized,
)
from stackmgr.limits import BODY_LIMIT_BYTES, CANONICAL_UUID
from stackmgr.stacks import cursor
from stackmgr.stacks.cursor import Position

DEFAULT_PAGE_SIZE = 25
MAX_PAGE_SIZE = 100

# RFC 9110 section 11.4: a scheme in any case, spaces, one token68.
_BEARER = re.compile(r"bearer +([A-Za-z0-9._~+/-]+=*)", re.IGNORECASE | re.ASCII)
_UUID = re.compile(CANONICAL_UUID, re.IGNORECASE | re.ASCII)
_MALFORMED_ESCAPE = re.compile(r"%(?![0-9a-fA-F]{2})")
_DIGITS = re.compile(r"[0-9]+")


def bearer_token(req: falcon.Request) -> str:
    """Return the credential of the Authorization header.  Raises Unauthorized."""
    return parse_credential(req.env.get("HTTP_AUTHORIZATION", ""))


def parse_credential(authorization: str) -> str:
    """Return the credential in the value of an Authorization header.  Raises Unauthorized."""
    match = _BEARER.fullmatch(authorization)
    if match is None:
        raise Unauthorized("authorization_header")
    return match[1]


def parse_stack_id(text: str) -> str:
    """Return the stack id in *text*, in lowercase.  Raises InvalidStackId."""
    if not _UUID.fullmatch(text):
        raise InvalidStackId("stack_id")
    return text.lower()


def parse_idempotency_key(req: falcon.Request) -> str:
    """Return the Idempotency-Key unchanged.  Raises InvalidIdempotencyKey."""
    key: str = req.env.get("HTTP_IDEMPOTENCY_KEY", "")
    if not key.strip():
        raise InvalidIdempotencyKey("idempotency_key_blank")
    return key


def check_content_length(req: falcon.Request) -> None:
    """Raise PayloadTooLarge if Content-Length exceeds the limit."""
    if (req.content_length or 0) > BODY_LIMIT_BYTES:
        raise PayloadTooLarge("content_length")


def read_body(req: falcon.Request) -> bytes:
    """Return the complete body of a JSON request.

    Raises InvalidBody for another media type, a content coding or an incomplete body, and PayloadTooLarge
    for a body over the limit.  At most one byte more than the limit is read.
    """
    media_type = req.env.get("CONTENT_TYPE") or "application/json"
    if media_type.partition(";")[0].strip().lower() != "application/json":
        raise InvalidBody("media_type")
    if (req.env.get("HTTP_CONTENT_ENCODING") or "identity").strip().lower() != "identity":
        raise InvalidBody("content_encoding")
    content_length = req.content_length
    if content_length is None and not req.env.get("wsgi.input_terminated"):
        return b""
    size = BODY_LIMIT_BYTES + 1 if content_length is None else content_length
    try:
        # Not Falcon's stream, which reads a chunked body as empty.
        received: bytes = req.env["wsgi.input"].read(size)
    except OSError as ex:
        raise InvalidBody("framing") from ex
    if len(received) > BODY_LIMIT_BYTES:
        raise PayloadTooLarge("body")
    if content_length is not None and len(received) != content_length:
        raise InvalidBody("truncated")
    return received


def _decode(text: str) -> str:
    if _MALFORMED_ESCAPE.search(text):
        raise InvalidPagination("percent_encoding")
    try:
        return unquote_to_bytes(text.replace("+", " ")).decode("utf-8")
    except UnicodeDecodeError as ex:
        raise InvalidPagination("percent_encoding") from ex


def _parse_limit(text: str) -> int:
    if not _DIGITS.fullmatch(text):
        raise InvalidPagination("limit_form")
    digits = text.lstrip("0")
    # Check the length first: int() raises ValueError for thousands of digits.
    if not 1 <= len(digits) <= len(str(MAX_PAGE_SIZE)) or int(digits) > MAX_PAGE_SIZE:
        raise InvalidPagination("limit_range")
    return int(digits)


def parse_page_query(query_string: str) -> tuple[Position, int]:
    """Return the start position and the size of the requested page.  Raises InvalidPagination.

    Falcon's parser is not used: it joins repeated names into a list and replaces malformed escapes with
    U+FFFD, which hides invalid queries.
    """
    after, limit = cursor.START, DEFAULT_PAGE_SIZE
    seen = set()
    for piece in filter(None, query_string.split("&")):
        raw_name, _, raw_value = piece.partition("=")
        name, value = _decode(raw_name), _decode(raw_value)
        if name in seen:
            raise InvalidPagination("parameter_repeated")
        seen.add(name)
        if name == "cursor":
            after = cursor.decode(value)
        elif name == "limit":
            limit = _parse_limit(value)
        else:
            raise InvalidPagination("parameter_unknown")
    return after, limit
