"""What nginx sends to the service, and its response for a service that does not respond."""

import http.client
import json
import re
import time
from contextlib import ExitStack

import pytest

from stackmgr.server import loop
from tests.support.client import STACKS, check_response
from tests.support.http_server import hang_up, http_server, raw, respond
from tests.support.nginx import SITE, nginx_before
from tests.support.server import free_port

# Under nginx, an idle connection to the service is otherwise closed before a busy machine uses it again.
KEEPING = {"keepalive_timeout 1s;": "keepalive_timeout 60s;"}
IMPATIENT = {"proxy_read_timeout 30s;": "proxy_read_timeout 1s;"}
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
well = respond(200, {}, "Content-Type: application/json")


def silent(connection, _):
    """Never respond; the client leaves in the end."""
    connection.recv(1)


FORGED = {
    "Forwarded": "for=1.2.3.4;proto=http",
    "Proxy": "http://elsewhere",
    "Via": "1.0 elsewhere",
    "X-Forwarded-For": "1.2.3.4",
    "X-Forwarded-Host": "elsewhere",
    "X-Forwarded-Port": "1",
    "X-Forwarded-Prefix": "/evil",
    "X-Forwarded-Proto": "http",
    "X-Forwarded-Protocol": "ssl",
    "X-Forwarded-Scheme": "http",
    "X-Forwarded-Server": "elsewhere",
    "X-Forwarded-Ssl": "off",
    "X-Original-URL": "/evil",
    "X-Real-IP": "1.2.3.4",
    "X-Rewrite-URL": "/evil",
    "X-Script-Name": "/evil",
    "SCRIPT_NAME": "/manager",
    "PATH_INFO": "/evil",
    "REMOTE_USER": "root",
    "X_Request_Id": "forged",
    "TE": "trailers",
    "Upgrade": "websocket",
    "Connection": "upgrade, authorization",
    "Expect": "200-ok",
}


def send_request(proxy, method: str, **headers: str):
    response = proxy.request(method, STACKS, headers, b"{}" if method in {"POST", "PATCH"} else b"")
    if response.status != 200:
        check_response(method, STACKS, response.status, response.headers, response.body)
    return response


@pytest.mark.parametrize("method", ["GET", "POST", "PATCH"])
def test_a_service_that_is_down_is_an_internal_error(tmp_path, method):
    with nginx_before(tmp_path, free_port()) as proxy:
        assert send_request(proxy, method).status == 500


@pytest.mark.parametrize(
    "behaviour",
    [
        pytest.param(hang_up, id="closes the connection"),
        pytest.param(raw(HEAD), id="closes it in the middle of the head"),
        pytest.param(raw(HEAD + b"X-A: " + b"a" * 40000 + b"\r\n\r\n"), id="sends too long a head"),
        pytest.param(silent, id="never responds"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_an_incomplete_response_of_the_service_is_an_internal_error_with_the_request_id(
    tmp_path, method, behaviour
):
    with (
        http_server(behaviour) as upstream,
        nginx_before(tmp_path, upstream.port, changes=IMPATIENT) as proxy,
    ):
        response = send_request(proxy, method)
        assert response.status == 500
        assert json.loads(response.body)["request_id"] == upstream.requests[-1].headers["x-request-id"]
        assert len(upstream.requests) == 1


@pytest.mark.parametrize("method", ["GET", "POST", "PATCH"])
def test_the_log_has_the_method_of_a_failed_request(tmp_path, method):
    with nginx_before(tmp_path, free_port()) as proxy:
        send_request(proxy, method)
        deadline = time.monotonic() + 60
        while not (lines := (proxy.folder / "stackmgr.log").read_text().splitlines()):
            assert time.monotonic() < deadline
            time.sleep(0.02)
    [line] = map(json.loads, lines)
    assert (line["method"], line["status"], line["upstream_status"]) == (method, "500", "502")


def test_a_truncated_response_does_not_look_complete(tmp_path):
    with (
        http_server(raw(HEAD + b"Content-Length: 9\r\n\r\n{")) as upstream,
        nginx_before(tmp_path, upstream.port) as proxy,
        pytest.raises(http.client.IncompleteRead),
    ):
        send_request(proxy, "GET")


@pytest.mark.parametrize("method", ["POST", "PATCH"])
@pytest.mark.parametrize("behaviour", [hang_up, silent], ids=["hanging up", "silent"])
def test_a_write_that_was_sent_is_never_sent_again(tmp_path, method, behaviour):
    with ExitStack() as stack:
        both = [stack.enter_context(http_server(behaviour)) for _ in range(2)]
        proxy = stack.enter_context(nginx_before(tmp_path, both[0].port, both[1].port, changes=IMPATIENT))
        assert send_request(proxy, method).status == 500
        assert sum(len(upstream.requests) for upstream in both) == 1


def test_a_write_that_an_idle_connection_lost_is_not_sent_again(tmp_path):
    behaviours = iter([well, hang_up])

    def behave(connection, request):
        return next(behaviours)(connection, request)

    with (
        http_server(behave) as upstream,
        nginx_before(tmp_path, upstream.port, changes=KEEPING) as proxy,
    ):
        assert send_request(proxy, "GET").status == 200
        assert send_request(proxy, "POST").status == 500
        assert (upstream.connections, len(upstream.requests)) == (1, 2)


@pytest.mark.parametrize("method", ["GET", "POST", "PATCH"])
def test_a_request_that_could_not_be_sent_goes_to_the_other_server(tmp_path, method):
    with (
        http_server(well) as upstream,
        nginx_before(tmp_path, free_port(), upstream.port) as proxy,
    ):
        assert [send_request(proxy, method).status for _ in range(3)] == [200] * 3
        assert len(upstream.requests) == 3


def test_a_read_that_one_server_dropped_is_served_by_the_other(tmp_path):
    with (
        http_server(hang_up) as dropping,
        http_server(well) as upstream,
        nginx_before(tmp_path, dropping.port, upstream.port) as proxy,
    ):
        assert [send_request(proxy, "GET").status for _ in range(3)] == [200] * 3
        assert dropping.requests


def test_connections_to_the_service_are_kept(tmp_path):
    with http_server(well) as upstream, nginx_before(tmp_path, upstream.port, changes=KEEPING) as proxy:
        for _ in range(5):
            assert send_request(proxy, "GET").status == 200
        assert (upstream.connections, len(upstream.requests)) == (1, 5)


def test_nginx_closes_an_idle_connection_before_the_service_does():
    upstream = SITE.read_text().partition("server {")[0]
    (kept,) = re.findall(r"^ +keepalive_timeout (\d+)s;$", upstream, re.MULTILINE)
    settings = (SITE.parent / "gunicorn.conf.py").read_text()
    (keepalive,) = re.findall(r"^keepalive = (\d+)$", settings, re.MULTILINE)
    assert int(kept) < loop.STOP_LINGER
    assert int(kept) < int(keepalive)


def test_no_forged_header_reaches_the_service(tmp_path):
    honest = {"Authorization": "Bearer a", "Idempotency-Key": "k", "X-Request-Id": "sent", "X-Other": "o"}
    with http_server(well) as upstream, nginx_before(tmp_path, upstream.port) as proxy:
        assert send_request(proxy, "POST", Host="elsewhere:1", **honest, **FORGED).status == 200
        passed = upstream.requests[-1].headers
    added = {"host": "elsewhere", "content-length": "2", "accept-encoding": "identity"}
    assert passed == {name.lower(): value for name, value in honest.items()} | added


def test_a_line_of_the_file_removes_the_trace_context(tmp_path):
    trace = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}
    uncommented = {f'# proxy_set_header {name} "";': f'proxy_set_header {name} "";' for name in trace}
    with http_server(well) as upstream:
        for number, changes in enumerate(({}, uncommented)):
            (folder := tmp_path / str(number)).mkdir()
            with nginx_before(folder, upstream.port, changes=changes) as proxy:
                assert send_request(proxy, "GET", **trace).status == 200
            passed = {name: value for name, value in upstream.requests[-1].headers.items() if name in trace}
            assert passed == ({} if changes else trace)


def test_a_chunked_body_reaches_the_service_with_its_length(tmp_path):
    with http_server(well) as upstream, nginx_before(tmp_path, upstream.port) as proxy:
        proxy.request("POST", STACKS, {"Transfer-Encoding": "chunked"}, iter([b"{", b" ", b"}"]))
        assert upstream.requests[-1].headers["content-length"] == "3"
        assert "transfer-encoding" not in upstream.requests[-1].headers


def test_the_path_reaches_the_service_as_it_was_sent(tmp_path):
    path = "//manager/./stacks/%C3%A9/../x%2F?cursor=a%20b&&limit"
    with http_server(well) as upstream, nginx_before(tmp_path, upstream.port) as proxy:
        proxy.request("GET", path, {})
        assert upstream.requests[0].line == f"GET {path} HTTP/1.1"
