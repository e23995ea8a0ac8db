"""A W3C Trace Context, from a request on the wire to the log and to a remote verifier."""

import json
from uuid import uuid4

import pytest

from tests.support import http_wire
from tests.support.http_server import http_server, respond
from tests.support.server import running_service
from tests.support.unkey_server import ROOT_KEY, accepted

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
VALID = f"00-{TRACE}-00f067aa0ba902b7-01"
CASES = {
    "none": ("", False),
    "with state": (f"TraceParent: {VALID}\r\ntracestate: a=1\r\n", True),
    "invalid": (f"traceparent: {VALID.upper()}\r\n", False),
    "repeated": (f"traceparent: {VALID}\r\ntraceparent: {VALID}\r\n", False),
}


@pytest.fixture(scope="module")
def unkey():
    with http_server() as server:
        server.behave = respond(200, accepted(str(uuid4()), str(uuid4())))
        yield server


@pytest.fixture(scope="module")
def service(database_url, unkey):
    env = {"STACKMGR_VERIFIER": "unkey", "STACKMGR_UNKEY_URL": unkey.url, "STACKMGR_UNKEY_ROOT_KEY": ROOT_KEY}
    with running_service(database_url, env=env) as running:
        yield running


@pytest.mark.parametrize(("fields", "is_valid"), CASES.values(), ids=CASES)
def test_a_trace_context_is_logged_and_forwarded(service, unkey, fields, is_valid):
    head = f"Host: a\r\nAuthorization: Bearer key\r\nX-Request-Id: {(request_id := str(uuid4()))}\r\n{fields}"
    request = f"GET /manager/stacks HTTP/1.1\r\n{head}Connection: close\r\n\r\n"
    with http_wire.connect(service.port, request.encode()) as client:
        response = client.read_all()
    assert response.startswith(b"HTTP/1.1 200 ")
    assert b"traceparent" not in response.lower()

    received = unkey.requests[-1].headers
    forwarded = {name: value for name, value in received.items() if name.startswith("trace")}
    assert forwarded == ({"traceparent": VALID} if is_valid else {})
    (line,) = (json.loads(line) for line in service.log().splitlines() if request_id in line)
    assert line.get("trace_id") == (TRACE if is_valid else None)
