"""A W3C Trace Context, from a request on the wire to the log and to a remote verifier."""

import http.client
import json
from uuid import uuid4

import pytest

from tests.support.http_server import http_server, respond
from tests.support.server import running_service
from tests.support.unkey_server import ROOT_KEY, accepted

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
VALID = f"00-{TRACE}-00f067aa0ba902b7-01"


@pytest.fixture(scope="module")
def unkey():
    with http_server() as server:
        server.behave = respond(200, accepted(str(uuid4()), str(uuid4())))
        yield server


@pytest.fixture(scope="module")
def service(database_url, unkey):
    env = {
        "STACKMGR_VERIFIER": "unkey",
        "STACKMGR_UNKEY_URL": unkey.url,
        "STACKMGR_UNKEY_ROOT_KEY": ROOT_KEY,
    }
    with running_service(database_url, env=env) as running:
        yield running


@pytest.mark.parametrize(
    ("fields", "forwarded"),
    [
        ([], {}),
        ([("traceparent", VALID)], {"traceparent": VALID}),
        ([("TraceParent", VALID), ("tracestate", "a=1")], {"traceparent": VALID}),
        ([("traceparent", f"cc-{VALID[3:]}-more")], {"traceparent": VALID}),
        ([("traceparent", VALID.upper())], {}),
        ([("traceparent", VALID), ("traceparent", VALID)], {}),
    ],
    ids=["none", "alone", "with state", "later version", "invalid", "repeated"],
)
def test_a_trace_context_is_logged_and_forwarded(service, unkey, fields, forwarded):
    request_id = str(uuid4())
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=60)
    connection.putrequest("GET", "/manager/stacks")
    for field in [("Authorization", "Bearer key-of-a-trace"), ("X-Request-Id", request_id), *fields]:
        connection.putheader(*field)
    connection.endheaders()
    response = connection.getresponse()
    assert response.status == 200
    assert "traceparent" not in response.headers
    connection.close()

    received = unkey.requests[-1].headers
    assert {key: value for key, value in received.items() if key.startswith("trace")} == forwarded
    (line,) = (json.loads(line) for line in service.log().splitlines() if request_id in line)
    assert line.get("trace_id") == (TRACE if forwarded else None)
