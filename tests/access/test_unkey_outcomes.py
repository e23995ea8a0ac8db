"""Unkey's responses and the service's: each row of the mapping, through all four operations."""

import json
import logging

import pytest

from stackmgr import __version__
from stackmgr.access.verifiers.http_connection import RESPONSE_LIMIT_BYTES
from stackmgr.monitoring.logs import RateLimitFilter
from tests.access.circuits import STARTS, simulated_clock
from tests.support.client import STACKS
from tests.support.http_server import respond, response
from tests.support.tables import each_case
from tests.support.unkey_server import ROOT_KEY, accepted, verification

pytestmark = pytest.mark.usefixtures("circuit_stays_closed")
EXTERNAL = "3b241101-e2bb-4255-8caf-4136c566a962"
FAR = "Fri, 31 Dec 9999 23:59:59 GMT"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
VALID = f"00-{TRACE}-00f067aa0ba902b7-01"
REJECTED = {
    "rejected with an identity": verification("DISABLED", identity={"id": "id_1", "externalId": EXTERNAL}),
    "no identity": verification("VALID", valid=True),
    "identity null": verification("VALID", valid=True, identity=None),
    "identity a list": verification("VALID", valid=True, identity=["id_1", EXTERNAL]),
    "no identity id": verification("VALID", valid=True, identity={"externalId": EXTERNAL}),
    "identity id empty": accepted(EXTERNAL, ""), "identity id a number": accepted(EXTERNAL, 7),
    "identity id beyond storing": accepted(EXTERNAL, "x" * 256),
    "identity id with NUL": accepted(EXTERNAL, "id\0"),
    "identity id half a character": accepted(EXTERNAL, "id\ud800"),
    "identity id with a line feed": accepted(EXTERNAL, "id\n1"),
    "no external id": verification("VALID", valid=True, identity={"id": "id_1"}),
    "external id empty": accepted(""), "external id null": accepted(None),
    "external id uppercase": accepted(EXTERNAL.upper()),
    "external id without hyphens": accepted(EXTERNAL.replace("-", "")),
    "external id braced": accepted(f"{{{EXTERNAL}}}"), "external id as urn": accepted(f"urn:uuid:{EXTERNAL}"),
    "external id with a line feed": accepted(f"{EXTERNAL}\n"), "external id no uuid": accepted("acme"),
}  # fmt: skip


def respond_longest(body: bytes, excess: int = 0):
    """Respond with *body* and spaces, of the longest allowed length, head included, plus *excess*."""
    head = len(response(200, b" " * RESPONSE_LIMIT_BYTES)) - RESPONSE_LIMIT_BYTES
    return respond(200, body.ljust(RESPONSE_LIMIT_BYTES - head + excess))


LIMIT = {"name": "r", "duration": 60_000, "reset": 10**15, "exceeded": True}
LIMITED = {
    "rate limited": respond(200, verification("RATE_LIMITED")),
    "usage exceeded, beside a limit": respond(200, verification("USAGE_EXCEEDED", ratelimits=[LIMIT])),
    "the workspace": respond(429, b"{}"),
    "the workspace, for a time that is none": respond(429, b"{}", "Retry-After: soon"),
    "the workspace, for a negative time": respond(429, b"{}", "Retry-After: -1"),
}
UNAVAILABLE = {
    **{
        f"HTTP {status}": respond(status, accepted(EXTERNAL), "Location: /v2/keys.verifyKey")
        for status in (201, 204, *range(300, 309), 400, 401, 403, 404, 408, 412, 418, 499, 500, 502, 503, 504)
    },
    "valid with another code": respond(200, verification("DISABLED", valid=True)),
    "valid with a limit's code": respond(200, verification("RATE_LIMITED", valid=True)),
    "invalid with the code VALID": respond(200, verification("VALID")),
    "valid a string": respond(200, {"data": {"valid": "true", "code": "VALID"}}),
    "valid a number": respond(200, {"data": {"valid": 1, "code": "VALID"}}),
    "no valid": respond(200, {"data": {"code": "VALID"}}),
    "no code": respond(200, {"data": {"valid": False}}),
    "code a number": respond(200, {"data": {"valid": False, "code": 404}}),
    "no data": respond(200, {"meta": {}}), "data a list": respond(200, {"data": [True]}),
    "an array": respond(200, b"[]"), "null": respond(200, b"null"), "empty": respond(200, b""),
    "HTML": respond(200, b"<html>down for maintenance</html>"),
    "UTF-16": respond(200, '{"data": {"valid": true}}'.encode("utf-16")),
    "60000 brackets": respond(200, b"[" * 60000), "a byte too long": respond_longest(b"{}", excess=1),
}  # fmt: skip
OUTCOMES = {401: {title: respond(200, document) for title, document in REJECTED.items()}}
OUTCOMES |= {429: LIMITED, 503: UNAVAILABLE}


@each_case(
    ("status", "behaviour"),
    {status: [(status, each) for each in table.values()] for status, table in OUTCOMES.items()},
)
def test_any_other_response_accepts_no_key(every_operation, unkey, status, behaviour):
    unkey.behave = behaviour
    every_operation(status)
    assert len(unkey.requests) == 4


@pytest.mark.parametrize(("status", "sent", "returned"), [
    *((status, "30", "30") for status in (408, 429, 499, 500, 503)),
    *((503, sent, "86400") for sent in ("86401", FAR)), *((429, sent, "60") for sent in ("61", FAR)),
    *((503, sent, None) for sent in ("17\r\nRetry-After: 18", "-17")), (401, "17", None),
])  # fmt: skip
def test_retry_after_is_passed_on_within_a_bound(every_operation, unkey, monkeypatch, status, sent, returned):
    simulated_clock(monkeypatch).seconds = STARTS[-1]
    unkey.behave = respond(status, b"{}", f"Retry-After: {sent}")
    every_operation(429 if status == 429 else 503, retry_after=returned)


@pytest.fixture
def good(known):
    return accepted(known[0].external_id, f"id_{known[0].external_id}")


def test_a_response_is_read_up_to_its_limits(known, unkey, good):
    client, stack_id = known
    body = json.dumps(good).encode()
    data, megabyte = good["data"], {f"member {number:05}": "x" * 92 for number in range(9_900)}
    metadata = {"meta": megabyte, "identity": data["identity"] | {"meta": megabyte}}
    good = respond_longest(body), respond(200, {"data": data | metadata})
    values = [1] * 21_000, [[]] * 11_000, [{}] * 11_000  # more than can be parsed quickly
    bad = [respond(200, {"data": data | {"meta": each}}) for each in values]
    for number, behaviour in enumerate((*good, *bad)):
        unkey.behave = behaviour
        assert (number, client.get(stack_id).status_int) == (number, 200 if number < 2 else 503)


def test_the_request_to_unkey_follows_its_api(known, unkey):
    client, stack_id = known
    connections = unkey.connections
    client.get(stack_id)
    assert (client.statements, unkey.connections) == (["stack_get"], connections)
    (request,) = unkey.requests
    assert request.line == "POST /v2/keys.verifyKey HTTP/1.1"
    assert request.headers == {
        "accept": "application/json", "accept-encoding": "identity", "authorization": f"Bearer {ROOT_KEY}",
        "content-length": str(len(request.body)), "content-type": "application/json",
        "host": f"127.0.0.1:{unkey.port}", "user-agent": f"stackmgr/{__version__}",
    }  # fmt: skip
    assert request.body == b'{"key": "%s"}' % client.key.encode()


@pytest.mark.parametrize("path", ["", "/", "/unkey", "/unkey/", "/a/b//"])
def test_a_self_hosted_unkey_may_live_under_a_path(unkey, make_verifier, path):
    unkey.behave = respond(200, accepted(EXTERNAL))
    assert make_verifier(unkey.url + path).verify("key").external_id == EXTERNAL
    assert unkey.requests[0].line == f"POST {path.rstrip('/')}/v2/keys.verifyKey HTTP/1.1"


@pytest.mark.parametrize("key_id", ["k", "x" * 255, None, 7, "", "a\nb", "x" * 256], ids=repr)
def test_key_id_of_unkey_is_recorded(known, unkey, good, admin, key_id):
    client, stack_id = known
    good["data"]["keyId"] = key_id
    unkey.behave = respond(200, good)
    assert client.update(stack_id, {"name": "Second"}).status_int == 200
    query = "SELECT key_id FROM stackmgr.stack_revisions WHERE stack_id = %s AND revision_number = 2"
    recorded = key_id if key_id in ("k", "x" * 255) else None
    assert admin.execute(query, [stack_id]).fetchone() == (recorded,)


@pytest.mark.parametrize(("sent", "forwarded"), [
    ({}, {}), ({"traceparent": VALID, "tracestate": "a=1"}, {"traceparent": VALID}),
    ({"traceparent": VALID.upper()}, {}),
])  # fmt: skip
def test_a_trace_context_is_logged_and_forwarded(client_with, make_verifier, unkey, sent, forwarded):
    lines = []
    unkey.behave = respond(200, verification("NOT_FOUND"))
    client = client_with("key", verifier=make_verifier(unkey.url), observers=[lines.append])
    response = client.request("GET", STACKS, headers=sent)
    assert "traceparent" not in {name.lower() for name in response.headers}
    assert {name: text for name, text in unkey.requests[0].headers.items() if "trace" in name} == forwarded
    assert lines[0].get("trace_id") == (TRACE if forwarded else None)


@pytest.mark.parametrize(("length", "requests"), [(512, 1), (513, 0)])
def test_longer_key_never_reaches_unkey(known, unkey, length, requests):
    client, stack_id = known
    unkey.behave = respond(200, verification("NOT_FOUND"))
    assert client.get(stack_id, headers={"Authorization": f"Bearer {'x' * length}"}).status_int == 401
    assert len(unkey.requests) == requests


def test_rejected_root_key_is_logged(known, unkey, caplog, monkeypatch):
    client, stack_id = known
    log = logging.getLogger("stackmgr.verifiers")
    monkeypatch.setattr(log, "filters", [RateLimitFilter() for _ in log.filters])
    unkey.behave = respond(403, b'{"error": "%s"}' % ROOT_KEY.encode())
    assert [client.get(stack_id).status_int for _ in range(2)] == [503] * 2
    assert caplog.text.count("check its URL and the credential") == 1
    assert ROOT_KEY not in caplog.text
    assert client.key not in caplog.text
