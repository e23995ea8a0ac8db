"""The application behind the server it is deployed with."""

import json
from uuid import uuid4

import pytest

from stackmgr.limits import BODY_LIMIT_BYTES as BODY_LIMIT
from tests.support.client import STACKS
from tests.support.examples import configuration
from tests.support.http_wire import chunked, connect, head

BODY = json.dumps(configuration()).encode()


@pytest.fixture
def wire(service):
    with connect(service.port) as connection:
        yield connection


@pytest.fixture
def request_head(client):
    def make(method="POST", path=STACKS, **headers):
        own = {"Authorization": f"Bearer {client.key}"}
        if method == "POST":
            own |= {"Content-Type": "application/json", "Idempotency-Key": str(uuid4())}
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return head(method, path, own | named)

    return make


def length(announced):
    return {"Content_Length": str(announced)}


CHUNKED = {"Transfer_Encoding": "chunked"}
BROKEN = {
    "length": (400, length(len(BODY) + 1), BODY),
    "last chunk": (400, CHUNKED, b"%x\r\n%s\r\n0\r\n" % (len(BODY), BODY)),
    "over the limit": (413, CHUNKED, chunked(BODY.ljust(BODY_LIMIT + 1), 4096)),
}


@pytest.mark.parametrize("case", BROKEN.values(), ids=BROKEN)
def test_a_broken_body_uses_no_key(service, request_head, client, case):
    status, framing, sent = case
    with connect(service.port) as wire:
        wire.send(request_head(Idempotency_Key="key", **framing), sent)
        wire.finish()
        assert wire.checked_response().status == status
    assert client.page().json["items"] == []
    with connect(service.port) as wire:
        wire.send(request_head(Idempotency_Key="key", **length(len(BODY))), BODY)
        assert wire.checked_response().status == 201


@pytest.mark.parametrize("second", ["one", "two", ""])
def test_two_idempotency_keys_are_rejected(service, request_head, client, second):
    for name, status in (("Idempotency-Key", 400), ("X-Request-Id", 201)):
        with connect(service.port) as wire:
            wire.send(request_head(Idempotency_Key=f"one\r\n{name}: {second}", **length(len(BODY))), BODY)
            assert wire.checked_response().status == status
    assert len(client.page().json["items"]) == 1


@pytest.mark.parametrize("sent", [b"caf\xe9 \xff\x80", b"\xc2\x85", b'"quoted", \\ too'])
@pytest.mark.parametrize("status", [200, 400])
def test_a_request_id_returns_byte_for_byte(wire, request_head, sent, status):
    path = STACKS if status == 200 else f"{STACKS}?limit=0"
    wire.send(request_head("GET", path, X_Request_Id=b" \t" + sent + b" "))
    response = wire.checked_response("GET", path)
    assert response.status == status
    assert response.headers["X-Request-Id"].encode("latin-1") == sent


@pytest.mark.parametrize(("key", "status"), [
    (b"k" * 2676, 201), (b"k" * 2677, 400), (b"k" * 16000, 400), (b"\xe9" * 1338, 201), (b"\xe9" * 1339, 400),
    (("\u00e9" * 669).encode(), 201), (("\u00e9" * 669).encode() + b"k", 400), (b"k" * 1338 + b"\xff" * 669, 201),
], ids=lambda value: f"{len(value)} bytes" if isinstance(value, bytes) else None)  # fmt: skip
def test_longest_idempotency_keys(wire, request_head, key, status):
    for expected in (status, {201: 200, 400: 400}[status]):
        wire.send(request_head(Idempotency_Key=key, **length(len(BODY))), BODY)
        response = wire.checked_response()
        assert response.status == expected
        assert status == 201 or "Idempotency-Key" in response.json["message"]
