"""Responses through nginx are the service's, byte for byte; test_proxy_readings.py compares both."""

import json
from uuid import uuid4

import pytest

from tests.support.client import STACKS, check_response
from tests.support.examples import configuration
from tests.support.nginx import NginxProxy, nginx_before
from tests.support.server import Response

# An id that nginx would not repeat in an error of its own: where it comes back, the service has responded.
ODD_ID = 'é "quoted" \\ \x85\xff'
CREATE = json.dumps(configuration()).encode()


def request(proxy: NginxProxy, key: str, method: str, path: str, body=b"", **headers: str) -> Response:
    """Send a manager's request, and check the form of its response."""
    given = {
        "Authorization": f"Bearer {key}",
        "Content-Type": "application/json",
        "Idempotency-Key": str(uuid4()),
    }
    given |= {name.replace("_", "-"): value for name, value in headers.items()}
    response = proxy.request(
        method, path, {name: text.encode("latin-1") for name, text in given.items()}, body
    )
    check_response(method, path, response.status, response.headers, response.body)
    return response


def test_a_base_path_is_returned_in_location(service, key, tmp_path):
    as_the_file_says = {
        "    location / {\n": (
            "    location / { return 404; }\n    location = /base { return 404; }\n    location /base/ {\n"
        ),
        "proxy_pass http://stackmgr;": "proxy_pass http://stackmgr$stackmgr_below_base;",
        "map $request_uri $stackmgr_allow {": (
            'map $request_uri $stackmgr_below_base { "~^/base(?<below_base>/.*)$" $below_base; }\n'
            "map $request_uri $stackmgr_allow {"
        ),
        "proxy_redirect off;": "proxy_redirect / /base/; absolute_redirect off;",
    }
    with nginx_before(tmp_path, service.port, changes=as_the_file_says) as proxy:
        headers = {"Authorization": f"Bearer {key}", "Idempotency-Key": "k"}
        created = proxy.request("POST", f"/base{STACKS}", headers, CREATE)
        location = created.headers["Location"]
        assert (created.status, location) == (201, f"/base{STACKS}/{created.json['id']}")
        assert proxy.request("GET", location, headers).body == created.body
        for path in (
            "/",
            "/base",
            "/base/",
            "/base/manager%2Fstacks",
            STACKS,
            location.removeprefix("/base"),
        ):
            assert (path, request(proxy, key, "GET", path).status) == (path, 404)


@pytest.mark.parametrize(
    ("size", "status"), [(262144, 400), (262145, 413), (2_000_000, 413), (8 * 1024 * 1024, 413)]
)
@pytest.mark.parametrize("framing", [{}, {"Transfer_Encoding": "chunked"}], ids=["announced", "chunked"])
def test_bodies_of_up_to_8_megabytes_reach_the_service(proxy, key, framing, size, status):
    body = b'{"name": "' + b"x" * (size - 12) + b'"}'
    sent = iter([body]) if framing else body
    response = request(proxy, key, "POST", STACKS, sent, X_Request_Id=ODD_ID, **framing)
    assert (response.status, response.headers["X-Request-Id"]) == (status, ODD_ID)


@pytest.mark.parametrize("path", [STACKS, "/nowhere"])
def test_a_request_id_is_echoed_byte_for_byte(proxy, key, path):
    for sent in ("a", "a.b:c_d-e", ODD_ID, "é\tü", "r" * 16000, "x, y", "\xc3\xa9"):
        assert request(proxy, key, "GET", path, X_Request_Id=sent).headers["X-Request-Id"] == sent


@pytest.mark.parametrize("path", ["/live", "/ready", "/metrics"])
def test_the_operators_listener_is_not_published(proxy, key, path):
    assert request(proxy, key, "GET", path).status == 404


def test_expect_100_continue_gets_an_interim_response(proxy, key):
    head = (
        f"POST {STACKS} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\nIdempotency-Key: k\r\n"
    )
    with proxy.connect() as connection:
        connection.sendall(f"{head}Expect: 100-continue\r\nContent-Length: {len(CREATE)}\r\n\r\n".encode())
        assert connection.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(CREATE)
        assert connection.recv(65536).startswith(b"HTTP/1.1 201 ")
