"""Malformed requests: the response is an Error object, or nginx closes the connection."""

import json
import re
import ssl
from uuid import UUID

import pytest

from stackmgr import errors
from stackmgr.http.schemas import read_schema
from tests.support.client import STACKS, check_response
from tests.support.nginx import SITE, parse_responses
from tests.support.server import Response
from tests.support.waiting import eventually

EXAMPLE_ID = read_schema("openapi.json")["components"]["headers"]["RequestId"]["example"]
HOST = b"Host: localhost\r\n"
CLOSE = b"Connection: close\r\n"
LINE = b"GET /manager/stacks HTTP/1.1\r\n"


def get(*fields: bytes, line: bytes = LINE) -> bytes:
    return line + HOST + CLOSE + b"".join(field + b"\r\n" for field in fields) + b"\r\n"


def line(text: bytes) -> bytes:
    return get(line=text + b"\r\n")


def post(*fields: bytes, body: bytes = b"", version: bytes = b"1.1") -> bytes:
    head = (b"Idempotency-Key: k", b"X-Request-Id: sent", *fields)
    return get(*head, line=b"POST /manager/stacks HTTP/" + version + b"\r\n") + body


REJECTED_BY_NGINX = {
    "high bytes": b"\xf1\xf2\xf3\r\n\r\n", "method in lowercase": line(b"get /manager/stacks HTTP/1.1"),
    "method CONNECT": line(b"CONNECT localhost:443 HTTP/1.1"), "target *": line(b"GET * HTTP/1.1"),
    "target with a space": line(b"GET /manager/sta cks HTTP/1.1"),
    "target with %00": line(b"GET /manager/stacks/%00 HTTP/1.1"),
    "target above the root, escaped": line(b"GET /%2e%2e/manager/stacks HTTP/1.1"),
    "target with NUL": line(b"GET /manager\x00/stacks HTTP/1.1"),
    "target of 20 kB": line(b"GET /manager/stacks?cursor=" + b"a" * 20000 + b" HTTP/1.1"),
    "HTTP/2.0": line(b"GET /manager/stacks HTTP/2.0"),
    "the preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "no Host": LINE + CLOSE + b"\r\n",
    "two Hosts": get(HOST.strip()), "field without a colon": get(b"Authorization Bearer SECRET"),
    "space before the colon": get(b"X-A : value"), "folded field": get(b"X-A: b", b" c"),
    "NUL in a value": get(b"X-A: b\x00c"),
    "two Authorizations": get(b"Authorization: Bearer a", b"Authorization: Bearer b"),
    "field of 20 kB": get(b"X-A: " + b"a" * 20000),
    "fields of 200 kB together": get(*[b"X-A: " + b"a" * 10000] * 20),
    "two lengths": post(b"Content-Length: 2", b"Content-Length: 3", body=b"{}"),
    "length with a sign": post(b"Content-Length: +2", body=b"{}"),
    "length of 20 digits": post(b"Content-Length: 99999999999999999999", body=b"{}"),
    "length of 9 MB": post(b"Content-Length: 9000000", body=b"{}"),
    "length and chunks": post(b"Content-Length: 2", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n"),
    "two codings": post(b"Transfer-Encoding: gzip, chunked", body=b"0\r\n\r\n"),
    "chunks in HTTP/1.0": post(b"Transfer-Encoding: chunked", body=b"0\r\n\r\n", version=b"1.0"),
    "size of a chunk is no number": post(b"Transfer-Encoding: chunked", body=b"zz\r\n{}\r\n0\r\n\r\n"),
    "size of a chunk is enormous": post(b"Transfer-Encoding: chunked", body=b"f" * 18 + b"\r\n{}"),
    "chunk longer than its size": post(b"Transfer-Encoding: chunked", body=b"2\r\n{}X0\r\n\r\n"),
    "a HEAD that is malformed": line(b"HEAD /%00 HTTP/1.1"),
}  # fmt: skip
CLOSED = {
    "nothing": b"", "empty lines": b"\r\n\r\n", "half a line": b"GET /manager/st",
    "half a head": LINE + b"Host: loc", "HTTP/0.9": b"GET /manager/stacks\r\n",
    "HTTP/0.9 and %00": b"GET /%00\r\n", "HTTP/0.9 and a blank": b"GET /manager/stacks \r\n\r\n",
    "half a body": post(b"Content-Length: 50", body=b"{}"),
    "half a chunk": post(b"Transfer-Encoding: chunked", body=b"5\r\n{}"),
}  # fmt: skip
# What nginx passes on and gunicorn rejects.
REJECTED_BY_THE_SERVER = {
    "target with a high byte": line(b"GET /manager/stacks/\xe9 HTTP/1.1"),
    "target of 10 kB": line(b"GET /manager/stacks?cursor=" + b"a" * 10000 + b" HTTP/1.1"),
    "control byte in a value": get(b"X-A: b\x01c"), "DEL in a value": get(b"X-A: b\x7fc"),
    "control byte in the request's id": get(b"X-Request-Id: b\x01c"), "200 fields": get(*[b"X-A: b"] * 200),
}  # fmt: skip
REJECTED = REJECTED_BY_NGINX | REJECTED_BY_THE_SERVER


def only_error(request: bytes, received: bytes) -> Response:
    head = request.startswith(b"HEAD ")
    (response,) = parse_responses(received, head=head)
    assert response.status in {400, 405, 413}
    check_response("HEAD" if head else "GET", STACKS, response.status, response.headers, response.body)
    assert response.headers["Server"] in {"nginx", None}
    return response


@pytest.mark.parametrize("request_", REJECTED.values(), ids=REJECTED)
def test_malformed_request_gets_an_error_object(proxy, request_):
    response = only_error(request_, proxy.send(request_))
    assert b"SECRET" not in response.body
    if not request_.startswith(b"HEAD "):
        kinds = {400: errors.InvalidRequest, 405: errors.MethodNotAllowed, 413: errors.PayloadTooLarge}
        assert json.loads(response.body)["message"] == kinds[response.status].message


@pytest.mark.parametrize("request_", CLOSED.values(), ids=CLOSED)
def test_incomplete_request_ends_the_connection(proxy, request_):
    assert proxy.send(request_) == b""


def test_a_request_without_tls_is_rejected(proxy):
    only_error(get(), proxy.send(get(), tls=False))


def test_tls_has_forward_secrecy_and_no_tickets(proxy):
    context = ssl.create_default_context(cafile=proxy.folder / "tls/fullchain.pem")
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with context.wrap_socket(proxy.connect(tls=False), server_hostname="localhost") as connection:
        assert not connection.session.has_ticket
    context.set_ciphers("ECDHE-ECDSA-AES128-SHA256")
    with proxy.connect(tls=False) as plain, pytest.raises(ssl.SSLError):
        context.wrap_socket(plain, server_hostname="localhost")


@pytest.mark.parametrize(("given", "repeated"), [
    (b"a.b:c_d-E9", True), (b"r" * 8000, True), (EXAMPLE_ID.encode(), True),
    (bytes(each for each in range(0x21, 0x7F) if each not in b'"\\'), True),
    (b"a b", True), (b'a"b', False), (b"a\\b", False), (b"\xe9", False),
    (b"", False),
])  # fmt: skip
def test_nginx_repeats_only_harmless_ids(proxy, given, repeated):
    request = get(b"X-Request-Id: " + given, b"X-A : malformed")
    returned = only_error(request, proxy.send(request)).headers["X-Request-Id"]
    if repeated:
        assert returned.encode() == given
    else:
        assert (str(UUID(returned)), UUID(returned).version) == (returned, 4)


def test_the_errors_of_nginx_are_those_of_the_service():
    said = set(re.findall(r'return (\d+) \'{"code": "(\w+)", "message": "([^"]+)"', SITE.read_text()))
    classes = (errors.InvalidRequest, errors.MethodNotAllowed, errors.NotFound, errors.PayloadTooLarge)
    every = (*classes, errors.TooManyRequests, errors.ServiceError)
    assert said == {(str(kind.status), kind.code, kind.message) for kind in every}


def test_nginx_log_is_ascii_and_holds_no_key(proxy):
    key = b"stackmgr_DO-NOT-LOG-THIS"
    proxy.send(get(b"Authorization Bearer " + key))
    for field, target in ((b"run \x9b31m", b"/"), (b"\xff", b"/\xff\xc3\xa9"), (b'"\\', b"/a?b=\xff")):
        fields = (b"X-Request-Id: " + field, b"Authorization: Bearer " + key, b"API_Key: " + key)
        proxy.send(get(*fields, line=b"GET " + target + b" HTTP/1.1\r\n"))

    def last() -> list[dict]:
        lines = (proxy.folder / "stackmgr.log").read_bytes().splitlines()[-3:]
        assert all(re.fullmatch(rb"[ -~]*", entry) for entry in lines), lines
        return [json.loads(entry) for entry in lines]

    seen = eventually(lambda: (found := last())[-1]["uri"] == "/a?b=" and found)
    *replaced, kept = [entry["request_id"] for entry in seen]
    assert [UUID(request_id).version for request_id in replaced] == [4, 4]
    assert kept == '"\\'
    assert [entry["uri"] for entry in seen] == ["/", "/", "/a?b="]
    for name in ("stackmgr.log", "stackmgr.error.log"):
        assert key not in (proxy.folder / name).read_bytes()
