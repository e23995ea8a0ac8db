"""How a body travels: its length, its framing, its media type and its codings."""

import gzip
import json
from functools import partial

import pytest

from tests.contract.raw_wsgi import Input, call
from tests.support.client import STACKS
from tests.support.examples import CONFIGURATION, configuration, padded
from tests.support.tables import each_case

LIMIT = 262144
TEXT = json.dumps(CONFIGURATION).encode()
CHUNKED = {"wsgi.input_terminated": True}


@pytest.fixture
def send(app, client, stack):
    """Return functions that send a body by hand, by the name of the operation."""
    create = partial(call, app, client, "POST", STACKS, HTTP_IDEMPOTENCY_KEY="key")
    return {"create": create, "update": partial(call, app, client, "PATCH", f"{STACKS}/{stack['id']}")}


operations = pytest.mark.parametrize("operation", ["create", "update"])


def test_a_body_has_at_most_262144_bytes(client, stack, rejected):
    assert client.create(padded(configuration(), LIMIT)).status_int == 201
    rejected(413, "payload_too_large", client.create, padded(configuration(), LIMIT + 1))
    assert client.update(stack["id"], padded({"name": "New"}, LIMIT)).status_int == 200
    rejected(413, "payload_too_large", client.update, stack["id"], padded({"name": "Newer"}, LIMIT + 1))


@operations
@pytest.mark.parametrize(
    ("body", "environ"),
    [(TEXT, CHUNKED), (TEXT + b"GET / HTTP/1.1", {"CONTENT_LENGTH": str(len(TEXT))})],
    ids=["without a length", "with a length, before another request"],
)
def test_a_body_is_read_to_its_end(send, operation, body, environ):
    given = Input(body)
    response = send[operation](given, **environ)
    assert response.status_int in (200, 201)
    assert response.json["name"] == "Growth"
    assert given.bytes_read == len(TEXT)


@operations
def test_the_limit_holds_without_a_length(send, rejected, operation):
    exact, over = Input(padded(CONFIGURATION, LIMIT)), Input(padded(CONFIGURATION, 4 * LIMIT))
    rejected(413, "payload_too_large", send[operation], over, **CHUNKED)
    assert over.bytes_read == LIMIT + 1
    over = Input(padded(CONFIGURATION, LIMIT + 1))
    rejected(413, "payload_too_large", send[operation], over, **CHUNKED)
    assert send[operation](exact, **CHUNKED).status_int in (200, 201)


@operations
@pytest.mark.parametrize("length", [LIMIT + 1, 10**9, 10**30])
def test_a_length_over_the_limit_is_not_read(send, rejected, operation, length):
    body = Input(TEXT)
    rejected(413, "payload_too_large", send[operation], body, CONTENT_LENGTH=str(length))
    assert body.bytes_read == 0


@operations
@pytest.mark.parametrize("length", [len(TEXT) + 1, LIMIT, -1, "many", "1.0"])
def test_a_wrong_length_is_rejected(send, rejected, operation, length):
    rejected(400, "invalid_request", send[operation], Input(TEXT), CONTENT_LENGTH=str(length))


@operations
@pytest.mark.parametrize("environ", [CHUNKED, {"CONTENT_LENGTH": str(len(TEXT))}], ids=["chunked", "length"])
@pytest.mark.parametrize("error", [OSError("Invalid chunk size: b'zz'"), ConnectionResetError(104, "reset")])
def test_a_body_that_breaks_off_is_rejected(send, rejected, operation, environ, error):
    rejected(400, "invalid_request", send[operation], Input(TEXT, breaks_with=error), **environ)


@operations
@pytest.mark.parametrize("environ", [{}, {"CONTENT_LENGTH": ""}, {"CONTENT_LENGTH": "0"}])
def test_without_a_length_nothing_is_read(send, rejected, operation, environ):
    # The stream is the bare connection then: a read would wait for bytes that never come.
    connection = Input(TEXT)
    rejected(400, "invalid_request", send[operation], connection, **environ)
    assert connection.bytes_read == 0


@operations
@each_case(
    "fields",
    {
        "no media type": ({}, {"CONTENT_TYPE": ""}),
        "JSON": [
            {"CONTENT_TYPE": text} for text in ("application/json", "APPLICATION/JSON", "application/json;")
        ],
        "with parameters": (
            {"CONTENT_TYPE": "Application/Json; charset=utf-8"},
            {"CONTENT_TYPE": "application/json;charset=latin-1"},
            {"CONTENT_TYPE": 'application/json ; charset=utf-16; note="a;b"'},
        ),
        "no coding": [{"HTTP_CONTENT_ENCODING": coding} for coding in ("identity", "Identity", "")],
    },
)
def test_json_is_accepted_with_any_parameter(send, operation, fields):
    assert send[operation](Input(TEXT), CONTENT_LENGTH=str(len(TEXT)), **fields).status_int in (200, 201)


@operations
@each_case(
    "media_type",
    {
        "text": ("text/plain", "text/json"),
        "forms": ("application/x-www-form-urlencoded", "multipart/form-data; boundary=application/json"),
        "more than JSON": ("application/merge-patch+json", "application/vnd.api+json", "application/jsonx"),
        "two": ("application/json,application/json", "; application/json"),
        "incomplete": ("application", "json", "*/*"),
    },
)
def test_another_media_type_is_rejected(send, rejected, operation, media_type):
    fields = {"CONTENT_TYPE": media_type, "CONTENT_LENGTH": str(len(TEXT))}
    rejected(400, "invalid_request", send[operation], Input(TEXT), **fields)


@operations
@pytest.mark.parametrize("coding", ["gzip", "GZIP", "deflate", "br", "zstd", "x-unknown", "identity, gzip"])
def test_a_coded_body_is_never_inflated(send, rejected, operation, coding):
    for text in (gzip.compress(TEXT), TEXT):
        environ = {"HTTP_CONTENT_ENCODING": coding, "CONTENT_LENGTH": str(len(text))}
        rejected(400, "invalid_request", send[operation], Input(text), **environ)
