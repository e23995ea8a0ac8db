"""Responses through nginx are the service's, byte for byte."""

import json
from uuid import UUID, uuid4

import pytest

from stackmgr import errors
from tests.support.client import STACKS, check_response
from tests.support.examples import configuration
from tests.support.nginx import NginxProxy, nginx_before, parse_responses
from tests.support.server import Response

# An id that nginx would not repeat in an error of its own: where it comes back, the service has responded.
ODD_ID = 'é "quoted" \\ \x85\xff'


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

    def create(self, body: bytes | None = None, **headers: str) -> Response:
        body = json.dumps(configuration()).encode() if body is None else body
        return self.request("POST", STACKS, body, **{"Idempotency_Key": str(uuid4())} | headers)


@pytest.fixture
def manager(proxy, new_key):
    return ProxyClient(proxy, new_key())


def message(response: Response) -> str:
    return json.loads(response.body)["message"]


def test_the_four_operations_pass_with_their_headers(manager):
    created = manager.create()
    stack = json.loads(created.body)
    path = f"{STACKS}/{stack['id']}"
    assert created.status == 201
    assert created.headers["Location"] == path
    assert created.headers["ETag"] == f'"{stack["current_revision_id"]}"'
    assert json.loads(manager.request("GET", STACKS).body)["items"] == [stack]
    assert json.loads(manager.request("GET", path).body) == stack
    updated = manager.request("PATCH", path, b'{"name": "Income"}')
    assert updated.status == 200
    assert updated.headers["ETag"] != created.headers["ETag"]
    assert json.loads(manager.request("GET", path).body) == stack | json.loads(updated.body)


def test_a_deployment_under_a_base_path_returns_it_in_location(service, new_key, tmp_path):
    as_the_file_says = {
        "    location / {\n": (
            "    location / { return 404; }\n    location = /base { return 404; }\n    location /base/ {\n"
        ),
        "proxy_pass http://stackmgr;": "proxy_pass http://stackmgr/;",
        "proxy_redirect off;": "proxy_redirect / /base/; absolute_redirect off;",
    }
    with nginx_before(tmp_path, service.port, changes=as_the_file_says) as proxy:
        headers = {"Authorization": f"Bearer {new_key()}", "Idempotency-Key": "k"}
        created = proxy.request("POST", f"/base{STACKS}", headers, json.dumps(configuration()).encode())
        location = created.headers["Location"]
        assert (created.status, location) == (201, f"/base{STACKS}/{json.loads(created.body)['id']}")
        assert proxy.request("GET", location, headers).body == created.body
        for path in ("/", "/base", "/base/", STACKS, location.removeprefix("/base")):
            response = ProxyClient(proxy, "k").request("GET", path)
            assert (path, response.status) == (path, 404)


def test_an_etag_stays_strong_whatever_compression_the_client_takes(manager):
    stack = json.loads(manager.create().body)
    read = manager.request("GET", f"{STACKS}/{stack['id']}", Accept_Encoding="gzip, br")
    assert read.headers["ETag"] == f'"{stack["current_revision_id"]}"'
    assert read.headers["Content-Encoding"] is None


def test_conditions_and_ranges_change_nothing(manager):
    stack = json.loads(manager.create().body)
    conditions = {
        "If_Match": '"other"',
        "If_None_Match": f'"{stack["current_revision_id"]}"',
        "Range": "bytes=0-9",
    }
    read = manager.request("GET", f"{STACKS}/{stack['id']}", **conditions)
    assert (read.status, json.loads(read.body)) == (200, stack)


def test_a_chunked_body_arrives_complete(manager):
    body = json.dumps(configuration(name="in chunks")).encode()
    created = manager.request(
        "POST",
        STACKS,
        iter([body[:7], body[7:]]),
        Idempotency_Key="chunks",
        Transfer_Encoding="chunked",
    )
    assert created.status == 201
    assert json.loads(created.body)["name"] == "in chunks"


def status_from_service(manager, size: int, framing: str) -> int:
    """Send a body of *size* bytes and return the status that the service, not nginx, has returned."""
    start, end = b'{"name": "', b'"}'
    body = start + b"x" * (size - len(start) - len(end)) + end
    headers = {"Idempotency_Key": "k", "X_Request_Id": ODD_ID}
    if framing == "chunked":
        response = manager.request("POST", STACKS, iter([body]), **headers, Transfer_Encoding="chunked")
    else:
        response = manager.request("POST", STACKS, body, **headers)
    assert response.headers["X-Request-Id"] == ODD_ID
    return response.status


@pytest.mark.parametrize(
    ("size", "status"), [(262144, 400), (262145, 413), (2_000_000, 413), (8 * 1024 * 1024, 413)]
)
@pytest.mark.parametrize("framing", ["announced", "chunked"])
def test_bodies_of_up_to_8_megabytes_reach_the_service(manager, framing, size, status):
    assert status_from_service(manager, size, framing) == status


def test_a_longer_body_is_rejected_by_nginx_in_the_same_form(manager):
    response = manager.create(b"x" * (8 * 1024 * 1024 + 1), X_Request_Id="much.too:long-1")
    assert response.status == 413
    assert response.headers["X-Request-Id"] == "much.too:long-1"


@pytest.mark.parametrize(("length", "status"), [(2048, 201), (3072, 400), (16000, 400)])
def test_long_idempotency_keys_reach_the_service(manager, length, status):
    response = manager.create(Idempotency_Key="k" * length, X_Request_Id=ODD_ID)
    assert response.status == status
    assert response.headers["X-Request-Id"] == ODD_ID
    if status == 400:
        assert message(response) == "The Idempotency-Key header is missing, blank or too long."


def test_an_idempotency_key_sent_twice_is_none_and_is_rejected_in_its_order(proxy, service, new_key):
    def send(line: str, key: str) -> tuple[int, str]:
        head = (
            f"{line} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\nConnection: close\r\n"
            f"Content-Length: 1\r\nX-Request-Id: {ODD_ID}\r\n" + 2 * "Idempotency-Key: one\r\n" + "\r\n["
        )
        [response] = parse_responses(proxy.send(head.encode("latin-1")), head=False)
        check_response(line.partition(" ")[0], STACKS, response.status, response.headers, response.body)
        assert response.headers["X-Request-Id"] == ODD_ID
        return response.status, json.loads(response.body).get("message")

    key = new_key()
    assert send(f"POST {STACKS}", key) == (400, errors.InvalidIdempotencyKey.message)
    assert send(f"POST {STACKS}", "unknown") == (401, errors.Unauthorized.message)
    assert send(f"GET {STACKS}", key) == (200, None)


@pytest.mark.parametrize(
    "request_id",
    ["a", "a.b:c_d-e", ODD_ID, "é\tü", "r" * 8000, "r" * 16000, "x, y", "\xc3\xa9"],
    ids=["short", "plain", "odd", "tab", "8000", "16000", "comma", "utf-8"],
)
@pytest.mark.parametrize("path", [STACKS, "/nowhere"])
def test_a_request_id_is_echoed_byte_for_byte(manager, request_id, path):
    assert manager.request("GET", path, X_Request_Id=request_id).headers["X-Request-Id"] == request_id


def test_a_trace_context_reaches_the_service(manager, service):
    trace_id, request_id = "4bf92f3577b34da6a3ce929d0e0e4736", str(uuid4())
    manager.request("GET", STACKS, X_Request_Id=request_id, traceparent=f"00-{trace_id}-00f067aa0ba902b7-01")
    (line,) = (line for line in service.log().splitlines() if request_id in line)
    assert json.loads(line)["trace_id"] == trace_id


@pytest.mark.parametrize("blank", ["", "   ", " \t "])
def test_a_blank_request_id_is_replaced_by_a_uuid(manager, blank):
    given = manager.request("GET", STACKS, X_Request_Id=blank).headers["X-Request-Id"]
    assert str(UUID(given)) == given


def test_two_requests_without_an_id_get_two(manager):
    ids = {manager.request("GET", STACKS).headers["X-Request-Id"] for _ in range(2)}
    assert len(ids) == 2
    assert {UUID(given).version for given in ids} == {4}


@pytest.mark.parametrize("path", ["/live", "/ready", "/metrics"])
def test_the_operators_listener_is_not_published(manager, path):
    assert manager.request("GET", path).status == 404


def test_expect_100_continue_gets_an_interim_and_then_a_final_response(proxy, new_key):
    body = json.dumps(configuration()).encode()
    with proxy.connect() as connection:
        connection.sendall(
            f"POST {STACKS} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {new_key()}\r\n"
            f"Idempotency-Key: k\r\nExpect: 100-continue\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        )
        assert connection.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body)
        assert connection.recv(65536).startswith(b"HTTP/1.1 201 ")


def test_pipelined_requests_all_get_a_response(proxy, new_key):
    request = f"GET {STACKS} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {new_key()}\r\n"
    received = proxy.send((f"{request}\r\n" * 2 + f"{request}Connection: close\r\n\r\n").encode())
    assert received.count(b"HTTP/1.1 200 OK\r\n") == 3


def test_a_server_responds_for_any_host(proxy, new_key):
    request = f"GET {STACKS} HTTP/1.0\r\nHost: elsewhere:1\r\nAuthorization: Bearer {new_key()}\r\n\r\n"
    assert proxy.send(request.encode()).startswith(b"HTTP/1.1 200 OK\r\n")
