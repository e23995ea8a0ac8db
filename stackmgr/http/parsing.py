"""Reading a request: from headers, path, query string and body to values the service can trust."""

import re
from urllib.parse import unquote_to_bytes

import falcon

from stackmgr import cursor
from stackmgr.cursor import Position
from stackmgr.errors import (
    InvalidBody,
    InvalidIdempotencyKey,
    InvalidPagination,
    InvalidStackId,
    PayloadTooLarge,
    Unauthorized,
)

BODY_LIMIT = 262144
DEFAULT_PAGE_SIZE = 25
MAX_PAGE_SIZE = 100

# RFC 9110 section 11.4: a scheme in any case, spaces, one token68.
_BEARER = re.compile(r"bearer +([A-Za-z0-9._~+/-]+=*)", re.IGNORECASE | re.ASCII)
_UUID = re.compile(r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}")
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
    """Return the Idempotency-Key, exactly.  Raises InvalidIdempotencyKey."""
    key: str = req.env.get("HTTP_IDEMPOTENCY_KEY", "")
    if not key.strip():
        raise InvalidIdempotencyKey("idempotency_key_blank")
    return key


def check_content_length(req: falcon.Request) -> None:
    """Raise PayloadTooLarge if the request already announces too long a body."""
    if (req.content_length or 0) > BODY_LIMIT:
        raise PayloadTooLarge("content_length")


def read_body(req: falcon.Request) -> bytes:
    """Return the whole body of a JSON request.

    Raises InvalidBody for another media type, a content coding, or a body that did not arrive whole, and
    PayloadTooLarge for one that runs over the limit; no more than one byte over it is ever held.
    """
    media_type = req.env.get("CONTENT_TYPE") or "application/json"
    if media_type.partition(";")[0].strip().lower() != "application/json":
        raise InvalidBody("media_type")
    if (req.env.get("HTTP_CONTENT_ENCODING") or "identity").strip().lower() != "identity":
        raise InvalidBody("content_encoding")
    announced = req.content_length
    if announced is None and not req.env.get("wsgi.input_terminated"):
        return b""
    try:
        # Not Falcon's own stream, which takes a chunked body for an empty one.
        received: bytes = req.env["wsgi.input"].read(BODY_LIMIT + 1 if announced is None else announced)
    except OSError as ex:
        raise InvalidBody("framing") from ex
    if len(received) > BODY_LIMIT:
        raise PayloadTooLarge("body")
    if announced is not None and len(received) != announced:
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
    # By length first: int() refuses thousands of digits with an error of its own.
    if not 1 <= len(digits) <= len(str(MAX_PAGE_SIZE)) or int(digits) > MAX_PAGE_SIZE:
        raise InvalidPagination("limit_range")
    return int(digits)


def parse_page_query(query_string: str) -> tuple[Position, int]:
    """Return the position and the size of the page that a list's query string asks for.

    Parsed here and not by Falcon, whose lenience (repeated names become lists, broken escapes become
    U+FFFD) cannot tell a good query from a bad one.  Raises InvalidPagination.
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
