"""The requests that nginx passes on, and its response for a service that does not respond."""

import http.client
import json
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.support.client import STACKS, check_response
from tests.support.http_server import HttpServer, hang_up, http_server, raw, respond
from tests.support.nginx import NginxProxy, nginx_before
from tests.support.server import free_port
from tests.support.waiting import eventually

# Under nginx, an idle connection to the service is otherwise closed before a busy machine uses it again.
KEEPING = {"keepalive_timeout 1s;": "keepalive_timeout 60s;"}
IMPATIENT = {"proxy_read_timeout 30s;": "proxy_read_timeout 1s;"}
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
well = respond(200, {}, "Content-Type: application/json")


def silent(connection, _):
    connection.recv(1)


INCOMPLETE = {
    "closes the connection": hang_up, "closes it in the middle of the head": raw(HEAD),
    "sends too long a head": raw(HEAD + b"X-A: " + b"a" * 40000 + b"\r\n\r\n"), "never responds": silent,
}  # fmt: skip
FORGED = ("Forwarded", "Proxy", "Via", "X-Original-URL", "X-Real-IP", "X-Rewrite-URL", "X-Script-Name")
FORGED += ("SCRIPT_NAME", "PATH_INFO", "REMOTE_USER", "X_Request_Id")
OF_FORWARDING = ("For", "Host", "Port", "Prefix", "Proto", "Protocol", "Scheme", "Server", "Ssl")
OF_A_HOP = {
    "TE": "trailers", "Upgrade": "websocket", "Connection": "upgrade, authorization", "Expect": "200-ok",
}  # fmt: skip


@pytest.fixture(scope="module")
def fronted(tmp_path_factory) -> Iterator[tuple[NginxProxy, HttpServer]]:
    """An impatient nginx, and the server behind it, whose behaviour a test may change."""
    folder = tmp_path_factory.mktemp("nginx")
    with http_server() as server, nginx_before(folder, server.port, changes=IMPATIENT | KEEPING) as front:
        yield front, server


@pytest.fixture
def front(fronted) -> NginxProxy:
    return fronted[0]


@pytest.fixture
def upstream(fronted) -> HttpServer:
    server = fronted[1]
    server.behave = well
    server.requests.clear()
    return server


def send_request(front, method: str, **headers: str):
    response = front.request(method, STACKS, headers, b"{}" if method in {"POST", "PATCH"} else b"")
    if response.status != 200:
        check_response(method, STACKS, response.status, response.headers, response.body)
    return response


def test_service_down_is_an_internal_error(tmp_path):
    methods = ["GET", "POST", "PATCH"]
    with nginx_before(tmp_path, free_port()) as front:
        assert {send_request(front, method).status for method in methods} == {500}
        log = front.folder / "stackmgr.log"
        eventually(lambda: len(log.read_text().splitlines()) == 3)
    lines = map(json.loads, log.read_text().splitlines())
    logged = [(line["method"], line["status"], line["upstream_status"]) for line in lines]
    assert logged == [(method, "500", "502") for method in methods]


@pytest.mark.parametrize("behaviour", INCOMPLETE.values(), ids=INCOMPLETE)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_incomplete_response_is_an_internal_error(front, upstream, method, behaviour):
    upstream.behave = behaviour
    response = send_request(front, method)
    assert response.status == 500
    [request] = upstream.requests
    assert response.json["request_id"] == request.headers["x-request-id"]


def test_a_truncated_response_does_not_look_complete(front, upstream):
    upstream.behave = raw(HEAD + b"Content-Length: 9\r\n\r\n{")
    with pytest.raises(http.client.IncompleteRead):
        send_request(front, "GET")


@pytest.mark.parametrize("method", ["POST", "PATCH"])
@pytest.mark.parametrize("behaviour", [hang_up, silent], ids=["hanging up", "silent"])
def test_sent_write_is_never_repeated(tmp_path, method, behaviour):
    with ExitStack() as stack:
        both = [stack.enter_context(http_server(behaviour)) for _ in range(2)]
        front = stack.enter_context(nginx_before(tmp_path, both[0].port, both[1].port, changes=IMPATIENT))
        assert send_request(front, method).status == 500
        assert sum(len(upstream.requests) for upstream in both) == 1


def test_lost_write_is_not_repeated(front, upstream):
    assert send_request(front, "GET").status == 200
    before, upstream.behave = upstream.connections, hang_up
    assert send_request(front, "POST").status == 500
    assert (upstream.connections, len(upstream.requests)) == (before, 2)


def test_unsent_request_goes_to_the_other_server(tmp_path):
    with (
        http_server(hang_up) as dropping,
        http_server(well) as upstream,
        nginx_before(tmp_path, dropping.port, upstream.port) as front,
    ):
        assert {send_request(front, "GET").status for _ in range(3)} == {200}
        assert dropping.requests
        with dropping.not_listening():
            for method in ("GET", "POST", "PATCH"):
                assert {send_request(front, method).status for _ in range(3)} == {200}


def test_no_forged_header_reaches_the_service(front, upstream):
    honest = {"Authorization": "Bearer a", "Idempotency-Key": "k", "X-Request-Id": "sent", "X-Other": "o"}
    forged = dict.fromkeys([*FORGED, *(f"X-Forwarded-{name}" for name in OF_FORWARDING)], "/evil") | OF_A_HOP
    assert send_request(front, "POST", Host="elsewhere:1", **honest, **forged).status == 200
    added = {"host": "elsewhere", "content-length": "2", "accept-encoding": "identity"}
    assert upstream.requests[-1].headers == {name.lower(): value for name, value in honest.items()} | added


def test_trace_context_can_be_removed(front, upstream, tmp_path):
    trace = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}
    uncommented = {f'# proxy_set_header {name} "";': f'proxy_set_header {name} "";' for name in trace}
    send_request(front, "GET", **trace)
    with nginx_before(tmp_path, upstream.port, changes=uncommented) as other:
        send_request(other, "GET", **trace)
    passed = [request.headers.get("traceparent") for request in upstream.requests]
    assert passed == [trace["traceparent"], None]


def test_chunked_body_arrives_with_its_length(front, upstream):
    front.request("POST", STACKS, {"Transfer-Encoding": "chunked"}, iter([b"{", b" ", b"}"]))
    assert upstream.requests[-1].headers["content-length"] == "3"
    assert "transfer-encoding" not in upstream.requests[-1].headers
