"""Responses through nginx are the service's, byte for byte; test_proxy_readings.py compares both."""

import json
from uuid import UUID, uuid4

import pytest

from tests.support.client import STACKS, check_response
from tests.support.examples import configuration
from tests.support.nginx import NginxProxy, nginx_before
from tests.support.server import Response

# An id that nginx would not repeat in an error of its own: where it comes back, the service has responded.
ODD_ID = 'é "quoted" \\ \x85\xff'
LINES = f"GET {STACKS} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {{}}\r\n"


class ProxyClient:
    """A manager who reaches the service through nginx; checks the form of every response."""

    def __init__(self, proxy: NginxProxy, key: str) -> None:
        self.proxy = proxy
        self.key = key

    def request(self, method: str, path: str, body=b"", **headers: str) -> Response:
        given = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        encoded = {name: value.encode("latin-1") for name, value in given.items()}
        response = self.proxy.request(method, path, encoded, body)
        check_response(method, path, response.status, response.headers, response.body)
        return response

    def create(self, body: bytes = json.dumps(configuration()).encode(), **headers: str) -> Response:
        return self.request("POST", STACKS, body, **{"Idempotency_Key": str(uuid4())} | headers)


@pytest.fixture
def manager(proxy, new_key):
    return ProxyClient(proxy, new_key())


def test_the_four_operations_pass_with_their_headers_whatever_compression_the_client_takes(manager):
    compression = {"Accept_Encoding": "gzip, br"}
    created = manager.create(**compression)
    stack = created.json
    path = f"{STACKS}/{stack['id']}"
    assert created.status == 201
    assert created.headers["Location"] == path
    assert created.headers["ETag"] == f'"{stack["current_revision_id"]}"'
    assert manager.request("GET", STACKS).json["items"] == [stack]
    read = manager.request("GET", path, **compression)
    assert (read.json, read.headers["ETag"]) == (stack, created.headers["ETag"])
    assert read.headers["Content-Encoding"] is None
    updated = manager.request("PATCH", path, b'{"name": "Income"}')
    assert updated.status == 200
    assert updated.headers["ETag"] != created.headers["ETag"]
    assert manager.request("GET", path).json == stack | updated.json


def test_a_deployment_under_a_base_path_returns_it_in_location(service, new_key, tmp_path):
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
        headers = {"Authorization": f"Bearer {new_key()}", "Idempotency-Key": "k"}
        created = proxy.request("POST", f"/base{STACKS}", headers, json.dumps(configuration()).encode())
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
            response = ProxyClient(proxy, "k").request("GET", path)
            assert (path, response.status) == (path, 404)


@pytest.mark.parametrize(
    ("size", "status"), [(262144, 400), (262145, 413), (2_000_000, 413), (8 * 1024 * 1024, 413)]
)
@pytest.mark.parametrize("framing", ["announced", "chunked"])
def test_bodies_of_up_to_8_megabytes_reach_the_service(manager, framing, size, status):
    body = b'{"name": "' + b"x" * (size - 12) + b'"}'
    if framing == "chunked":
        response = manager.create(iter([body]), X_Request_Id=ODD_ID, Transfer_Encoding="chunked")
    else:
        response = manager.create(body, X_Request_Id=ODD_ID)
    assert (response.status, response.headers["X-Request-Id"]) == (status, ODD_ID)


@pytest.mark.parametrize(
    "request_id",
    ["a", "a.b:c_d-e", ODD_ID, "é\tü", "r" * 8000, "r" * 16000, "x, y", "\xc3\xa9"],
    ids=["short", "plain", "odd", "tab", "8000", "16000", "comma", "utf-8"],
)
@pytest.mark.parametrize("path", [STACKS, "/nowhere"])
def test_a_request_id_is_echoed_byte_for_byte(manager, request_id, path):
    assert manager.request("GET", path, X_Request_Id=request_id).headers["X-Request-Id"] == request_id


def test_each_request_with_a_blank_id_or_none_gets_a_uuid(manager):
    given = [{"X_Request_Id": blank} for blank in ("", "   ", " \t ")] + [{}, {}]
    ids = {manager.request("GET", STACKS, **headers).headers["X-Request-Id"] for headers in given}
    assert len(ids) == 5
    assert [(str(UUID(each)), UUID(each).version) for each in ids] == [(each, 4) for each in ids]


@pytest.mark.parametrize("path", ["/live", "/ready", "/metrics"])
def test_the_operators_listener_is_not_published(manager, path):
    assert manager.request("GET", path).status == 404


def test_expect_100_continue_gets_an_interim_and_then_a_final_response(proxy, new_key):
    body = json.dumps(configuration()).encode()
    fields = f"Idempotency-Key: k\r\nExpect: 100-continue\r\nContent-Length: {len(body)}\r\n\r\n"
    with proxy.connect() as connection:
        connection.sendall((LINES.format(new_key()) + fields).replace("GET", "POST", 1).encode())
        assert connection.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body)
        assert connection.recv(65536).startswith(b"HTTP/1.1 201 ")
