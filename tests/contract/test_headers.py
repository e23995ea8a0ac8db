"""The header fields of requests and responses, for every status."""

from uuid import UUID

import pytest

from stackmgr.errors import RateLimited, ServiceUnavailable
from tests.support.client import STACKS, Client
from tests.support.examples import configuration
from tests.support.fixed_verifier import FixedVerifier

MISSING = "0f0e0d0c-0b0a-4988-8776-655443322110"
EVERY_RESPONSE = {"cache-control", "content-length", "content-type", "x-request-id"}


@pytest.fixture
def client_behind(serving, statements_run):
    """Return a function that makes a client of an application whose verifier raises the given error."""
    return lambda error: Client(serving(FixedVerifier(error)), "a-key", "", statements_run)


@pytest.fixture
def responses(client, client_behind):
    """Return a function that makes one request for each operation and status, and returns the responses."""
    stack_id = client.create(configuration(), key="used before").json["id"]

    def send_all(headers):
        return [
            client.create(configuration(), headers=headers),
            client.create(configuration(), key="used before", headers=headers),
            client.request("GET", STACKS, headers=headers),
            client.get(stack_id, headers=headers),
            client.update(stack_id, {"name": "Growth"}, headers=headers),
            client.create(b"{", headers=headers),
            client.request("GET", STACKS, headers={"Authorization": None} | headers),
            client.get(MISSING, headers=headers),
            client.request("GET", "/nowhere", headers=headers),
            client.request("DELETE", STACKS, headers=headers),
            client.create(configuration(name="Other"), key="used before", headers=headers),
            client.create(b"x" * 262145, headers=headers),
            client_behind(RateLimited()).request("GET", STACKS, headers=headers),
            client_behind(ArithmeticError()).request("GET", STACKS, headers=headers),
            client_behind(ServiceUnavailable()).request("GET", STACKS, headers=headers),
        ]

    return send_all


STATUSES = [201, 200, 200, 200, 200, 400, 401, 404, 404, 405, 409, 413, 429, 500, 503]


def test_every_status_echoes_the_request_id(responses):
    given = responses({"X-Request-Id": "order 66/b"})
    assert [response.status_int for response in given] == STATUSES
    assert {response.headers["X-Request-Id"] for response in given} == {"order 66/b"}


def test_every_status_carries_a_new_uuid_where_no_request_id_was_sent(responses):
    given = responses({})
    assert [response.status_int for response in given] == STATUSES
    request_ids = {response.headers["X-Request-Id"] for response in given}
    assert len(request_ids) == len(given)
    assert all(str(UUID(request_id)) == request_id for request_id in request_ids)


def test_no_response_has_an_unexpected_header(responses):
    more = {201: {"location"}, 401: {"www-authenticate"}, 405: {"allow"}}
    for response in responses({"Origin": "https://example.com", "Cookie": "session=1"}):
        # Where a stack is returned the client asserts that its tag is there as well.
        tag = {"etag"} if "current_revision_id" in response.json else set()
        names = {name.lower() for name in response.headers}
        assert names == EVERY_RESPONSE | more.get(response.status_int, set()) | tag
        assert response.headers["Content-Length"] == str(len(response.body))


@pytest.mark.parametrize(
    "text",
    [
        "0",
        "a,b",
        "F47AC10B-58CC-4372-A567-0E02B2C3D479",
        "two  spaces   inside",
        'quotes " and \\ and {"braces":null}',
        "<script>alert(1)</script>",
        "%0d%0a%s%(x)s",
        "caf\xe9",
        "\xa0",
        "\x85",
        "".join(map(chr, range(0x80, 0x100))),
        "r" * 60000,
    ],
    ids=range(12),
)
def test_a_request_id_is_echoed_exactly_in_the_header_and_in_the_error(client, text):
    missing = client.get(MISSING, headers={"X-Request-Id": text})
    assert missing.headers["X-Request-Id"] == text
    assert missing.json["request_id"] == text
    assert missing.body.isascii()
    assert client.create(configuration(), headers={"X-Request-Id": text}).headers["X-Request-Id"] == text


@pytest.mark.parametrize("text", ["", " ", "     ", "\t", " \t "])
def test_a_blank_request_id_is_replaced_by_a_new_uuid(client, text):
    first, second = (client.get(MISSING, headers={"X-Request-Id": text}) for _ in range(2))
    assert str(UUID(first.json["request_id"])) == first.json["request_id"]
    assert first.json["request_id"] != second.json["request_id"]


def test_whitespace_around_a_header_is_not_part_of_its_value(client):
    assert client.get(MISSING, headers={"X-Request-Id": " a b\t"}).json["request_id"] == "a b"


def test_the_entity_tag_changes_with_every_revision_and_is_the_same_from_every_operation(client):
    created = client.create(configuration(), key="k")
    stack_id = created.json["id"]
    updated = client.update(stack_id, {"name": "Growth"})
    assert updated.headers["ETag"] != created.headers["ETag"]
    for response in (client.get(stack_id), client.create(configuration(), key="k")):
        assert response.headers["ETag"] == updated.headers["ETag"]
    assert client.update(stack_id, {"name": "Growth"}).headers["ETag"] != updated.headers["ETag"]


@pytest.mark.parametrize(
    "value", ["current", "*", f'"{MISSING}"', "W/current", 'current, "x"', "garbage", '"']
)
@pytest.mark.parametrize("name", ["If-Match", "If-None-Match", "If-Range"])
def test_no_entity_tag_in_a_request_is_a_condition(client, name, value):
    created = client.create(configuration())
    stack_id = created.json["id"]
    condition = {name: value.replace("current", created.headers["ETag"])}
    assert client.get(stack_id, headers=condition).json == created.json
    assert client.request("HEAD", f"{STACKS}/{stack_id}", headers=condition).status_int == 200
    assert client.update(stack_id, {"name": "Value"}, headers=condition).status_int == 200
    assert client.create(configuration(), headers=condition).status_int == 201


@pytest.mark.parametrize(
    "headers",
    [
        {"If-Modified-Since": "Fri, 31 Dec 2100 23:59:59 GMT"},
        {"If-Unmodified-Since": "Thu, 01 Jan 1970 00:00:00 GMT"},
        {"Range": "bytes=0-3"},
        {"Expect": "100-continue"},
        {"X-HTTP-Method-Override": "PATCH"},
        {"Accept-Encoding": "gzip"},
        {"Accept-Charset": "utf-16"},
        {"X-Forwarded-Prefix": "/x", "Forwarded": "for=_;proto=https;host=x"},
        {"X-Manager-Id": MISSING},
        {"Idempotency-Key": ""},
    ],
    ids=lambda headers: next(iter(headers)),
)
def test_other_headers_change_nothing_about_reading_a_stack(client, headers):
    created = client.create(configuration())
    response = client.get(created.json["id"], headers=headers)
    assert response.status_int == 200
    assert response.json == created.json


def test_the_location_of_a_new_stack_is_a_path_that_leads_to_it(client):
    created = client.create(configuration())
    assert created.headers["Location"] == f"{STACKS}/{created.json['id']}"
    assert client.request("GET", created.headers["Location"]).json == created.json
