"""How a body travels: its length, its framing, its media type and its codings."""

import gzip
import json
from functools import partial

import pytest

from tests.contract.raw_wsgi import Input, call
from tests.support.client import STACKS
from tests.support.examples import CONFIGURATION, padded
from tests.support.tables import each_case

LIMIT = 262144
TEXT = json.dumps(CONFIGURATION).encode()
CHUNKED = {"wsgi.input_terminated": True}
operations = pytest.mark.parametrize("operation", ["create", "update"])


@pytest.fixture
def send(app, client, stack):
    create = partial(call, app, client, "POST", STACKS, HTTP_IDEMPOTENCY_KEY="key")
    return {"create": create, "update": partial(call, app, client, "PATCH", f"{STACKS}/{stack['id']}")}


@operations
@pytest.mark.parametrize(("body", "environ"), [
    (TEXT, CHUNKED),
    (TEXT + b"GET / HTTP/1.1", {"CONTENT_LENGTH": str(len(TEXT))}),
], ids=["without a length", "with a length, before another request"])  # fmt: skip
def test_a_body_is_read_to_its_end(send, operation, body, environ):
    given = Input(body)
    response = send[operation](given, **environ)
    assert response.status_int in (200, 201)
    assert response.json["name"] == "Growth"
    assert given.bytes_read == len(TEXT)


@operations
def test_the_limit_holds_without_a_length(send, rejected, operation):
    over = Input(padded(CONFIGURATION, 4 * LIMIT))
    rejected(413, "payload_too_large", send[operation], over, **CHUNKED)
    assert over.bytes_read == LIMIT + 1
    over = Input(padded(CONFIGURATION, LIMIT + 1))
    rejected(413, "payload_too_large", send[operation], over, **CHUNKED)
    for environ in (CHUNKED, {"CONTENT_LENGTH": str(LIMIT)}):
        exact = Input(padded(CONFIGURATION, LIMIT))
        assert send[operation](exact, **environ, HTTP_IDEMPOTENCY_KEY=str(environ)).status_int in (200, 201)


@operations
@pytest.mark.parametrize("length", [LIMIT + 1, 10**9, 10**30])
def test_a_length_over_the_limit_is_not_read(send, rejected, operation, length):
    body = Input(TEXT)
    rejected(413, "payload_too_large", send[operation], body, CONTENT_LENGTH=str(length))
    assert body.bytes_read == 0


JSON = ("", "application/json", "APPLICATION/JSON", "application/json;", "Application/Json; charset=utf-8",
    "application/json;charset=latin-1", 'application/json ; charset=utf-16; note="a;b"')  # fmt: skip


@operations
@each_case("fields", {
    "a media type": ({}, *({"CONTENT_TYPE": text} for text in JSON)),
    "no coding": [{"HTTP_CONTENT_ENCODING": coding} for coding in ("identity", "Identity", "")],
})  # fmt: skip
def test_json_is_accepted_with_any_parameter(send, operation, fields):
    assert send[operation](Input(TEXT), CONTENT_LENGTH=str(len(TEXT)), **fields).status_int in (200, 201)


WHOLE = {"CONTENT_LENGTH": str(len(TEXT))}
ERRORS = OSError("Invalid chunk size: b'zz'"), ConnectionResetError(104, "reset")
MEDIA_TYPES = (
    *("text/plain", "text/json", "application/x-www-form-urlencoded", "application", "json", "*/*"),
    *("application/merge-patch+json", "application/vnd.api+json", "application/jsonx"),
    *("multipart/form-data; boundary=application/json", "application/json,application/json"),
    "; application/json",
)
CODINGS = ("gzip", "GZIP", "deflate", "br", "zstd", "x-unknown", "identity, gzip")
# Without a length the stream is the bare connection: a read would wait for bytes that never come.
UNREAD = [(TEXT, environ) for environ in ({}, {"CONTENT_LENGTH": ""}, {"CONTENT_LENGTH": "0"})]
WRONG_LENGTHS = (len(TEXT) + 1, LIMIT, -1, "many", "1.0")


@operations
@each_case(("body", "environ"), {
    "no length": UNREAD,
    "a wrong length": [(TEXT, {"CONTENT_LENGTH": str(length)}) for length in WRONG_LENGTHS],
    "broken off": [(error, environ) for error in ERRORS for environ in (CHUNKED, WHOLE)],
    "a media type": [(TEXT, WHOLE | {"CONTENT_TYPE": text}) for text in MEDIA_TYPES],
    "a coding": [
        (text, {"HTTP_CONTENT_ENCODING": coding, "CONTENT_LENGTH": str(len(text))})
        for coding in CODINGS
        for text in (gzip.compress(TEXT), TEXT)
    ],
})  # fmt: skip
def test_any_other_transfer_is_rejected(send, rejected, operation, body, environ):
    given = Input(body) if isinstance(body, bytes) else Input(TEXT, breaks_with=body)
    rejected(400, "invalid_request", send[operation], given, **environ)
    assert (body, environ) not in UNREAD or given.bytes_read == 0
