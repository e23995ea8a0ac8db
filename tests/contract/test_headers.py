"""The header fields of requests and responses, for every status."""

from uuid import UUID

import pytest

from stackmgr.errors import RateLimited, ServiceUnavailable
from tests.contract.tables import each_case
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


def test_every_status_carries_a_new_uuid_where_no_request_id_was_sent(responses):
    given = responses({})
    assert [response.status_int for response in given] == STATUSES
    request_ids = {response.headers["X-Request-Id"] for response in given}
    assert len(request_ids) == len(given)
    assert all(str(UUID(request_id)) == request_id for request_id in request_ids)


def test_no_response_has_an_unexpected_header(responses):
    more = {201: {"location"}, 401: {"www-authenticate"}, 405: {"allow"}}
    sent = {"Origin": "https://example.com", "Cookie": "session=1", "X-Request-Id": "order 66/b"}
    for response in responses(sent):
        assert response.headers["X-Request-Id"] == "order 66/b"
        # Where a stack is returned the client asserts that its tag is there as well.
        tag = {"etag"} if "current_revision_id" in response.json else set()
        names = {name.lower() for name in response.headers}
        assert names == EVERY_RESPONSE | more.get(response.status_int, set()) | tag
        assert response.headers["Content-Length"] == str(len(response.body))


@each_case(
    "text",
    {
        "ordinary": ("0", "a,b", "F47AC10B-58CC-4372-A567-0E02B2C3D479", "two  spaces   inside"),
        "code": ('quotes " and \\ and {"braces":null}', "<script>alert(1)</script>", "%0d%0a%s%(x)s"),
        "Latin-1": ("caf\xe9", "\xa0", "\x85", "".join(map(chr, range(0x80, 0x100)))),
        "long": ("r" * 60000,),
    },
)
def test_a_request_id_is_echoed_exactly_but_for_white_space_around_it(client, text):
    missing = client.get(MISSING, headers={"X-Request-Id": f" {text}\t"})
    assert missing.json["request_id"] == missing.headers["X-Request-Id"] == text
    assert missing.body.isascii()
    assert client.create(configuration(), headers={"X-Request-Id": text}).headers["X-Request-Id"] == text


@pytest.mark.parametrize("text", ["", " ", "     ", "\t", " \t "])
def test_a_blank_request_id_is_replaced_by_a_new_uuid(client, text):
    first, second = (client.get(MISSING, headers={"X-Request-Id": text}) for _ in range(2))
    assert str(UUID(first.json["request_id"])) == first.json["request_id"]
    assert first.json["request_id"] != second.json["request_id"]


CONDITIONS = ("current", "*", f'"{MISSING}"', "W/current", 'current, "x"', "garbage", '"')


@each_case(
    "fields",
    {name: [{name: value} for value in CONDITIONS] for name in ("If-Match", "If-None-Match", "If-Range")}
    | {
        "dates": (
            {"If-Modified-Since": "Fri, 31 Dec 2100 23:59:59 GMT"},
            {"If-Unmodified-Since": "Thu, 01 Jan 1970 00:00:00 GMT"},
        ),
        "parts and forms": (
            {"Range": "bytes=0-3"},
            {"Expect": "100-continue"},
            {"Accept-Encoding": "gzip"},
            {"Accept-Charset": "utf-16"},
        ),
        "claims": (
            {"X-HTTP-Method-Override": "PATCH"},
            {"X-Forwarded-Prefix": "/x", "Forwarded": "for=_;proto=https;host=x"},
            {"X-Manager-Id": MISSING},
        ),
    },
)
def test_no_other_field_of_a_request_changes_anything(client, fields):
    created = client.create(configuration())
    stack_id = created.json["id"]
    headers = {name: value.replace("current", created.headers["ETag"]) for name, value in fields.items()}
    assert client.get(stack_id, headers=headers).json == created.json
    assert client.request("HEAD", f"{STACKS}/{stack_id}", headers=headers).status_int == 200
    for name in ("Second", "Third"):  # the tag is outdated then
        assert client.update(stack_id, {"name": name}, headers).json["name"] == name
    assert client.create(configuration(), headers=headers).status_int == 201


def test_the_entity_tag_changes_with_every_revision_and_is_the_same_from_every_operation(client):
    created = client.create(configuration(), key="k")
    stack_id = created.json["id"]
    updated = client.update(stack_id, {"name": "Growth"})
    assert updated.headers["ETag"] != created.headers["ETag"]
    for response in (client.get(stack_id), client.create(configuration(), key="k")):
        assert response.headers["ETag"] == updated.headers["ETag"]
    assert client.update(stack_id, {"name": "Growth"}).headers["ETag"] != updated.headers["ETag"]
