"""One request for each reading of the specification of HTTP: nginx changes no response but those listed."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest

from stackmgr import errors
from stackmgr.limits import BODY_LIMIT_BYTES
from tests.support.client import STACKS, check_response
from tests.support.examples import configuration
from tests.support.http_wire import chunked, connect
from tests.support.nginx import nginx_before, parse_responses
from tests.support.server import Response

ITEM = f"{STACKS}/ID"
BEARER = "Authorization: Bearer KEY"
NEW_KEY = "Idempotency-Key: NEW"
BODY = json.dumps(configuration()).encode()
# An id that nginx would not repeat in an error of its own: where it comes back, the service has responded.
ODD_ID = 'é "quoted" \\ \x85\xff'
COMPARED = ("Allow", "WWW-Authenticate", "Retry-After", "Cache-Control", "X-Request-Id", "Content-Type")


@dataclass(frozen=True)
class Row:
    """A request, and its status and error; ID, KEY, NEW and USED stand for what is known once it is sent."""

    request: bytes
    status: int
    error: type[errors.ServiceError] | None = None


def raw(line: str, *fields: str, body: bytes = b"", framed: str = "length", size: int = 50_000) -> bytes:
    framing = {"length": [f"Content-Length: {len(body)}"], "chunks": ["Transfer-Encoding: chunked"], "": []}
    lines = [f"{line} HTTP/1.1", "Host: localhost", "Connection: close", "X-Request-Id: reading/7 3"]
    lines += [*fields, *(framing[framed] if body else []), "", ""]
    return "\r\n".join(lines).encode("latin-1") + (chunked(body, size) if framed == "chunks" else body)


def read(line: str, *fields: str) -> bytes:
    return raw(line, BEARER, *fields)


def create(body: bytes = BODY, *fields: str, key: str = NEW_KEY, framed: str = "length") -> bytes:
    return raw(f"POST {STACKS}", BEARER, key, *fields, body=body, framed=framed)


def reads(line: str, texts: Iterable[str], status: int, error: Any = None) -> dict[str, Row]:
    return {line.format(text)[:40]: Row(read(line.format(text)), status, error) for text in texts}


def padded(size: int) -> bytes:
    return BODY + b" " * (size - len(BODY))


BAD = (400, errors.InvalidRequest)
NOT_FOUND = (404, errors.NotFound)
NOT_ALLOWED = (405, errors.MethodNotAllowed)
NO_KEY = (401, errors.Unauthorized)
NO_ID = (400, errors.InvalidStackId)
NO_IDEMPOTENCY = (400, errors.InvalidIdempotencyKey)
NO_PAGE = (400, errors.InvalidPagination)
ENDED = (400, errors.IncompleteRequest)
TOO_LARGE = (413, errors.PayloadTooLarge)
ROWS = {
    # Routing and methods
    "an unknown path": Row(raw("GET /nowhere"), *NOT_FOUND),
    **reads("GET {}", ("/manager//stacks", f"{STACKS}/", "/manager%2Fstacks"), *NOT_FOUND),
    **reads("GET {}", ("/live", "/ready", "/metrics"), *NOT_FOUND),
    "an id with an escaped slash": Row(read(f"GET {STACKS}/a%2fb"), *NO_ID),
    "DELETE": Row(read(f"DELETE {ITEM}"), *NOT_ALLOWED),
    "PUT": Row(raw(f"PUT {STACKS}", body=b"{}"), *NOT_ALLOWED),
    **{method: Row(raw(f"{method} {STACKS}"), *NOT_ALLOWED) for method in ("OPTIONS", "TRACE", "BREW")},
    "TRACE of nothing": Row(read("TRACE /nowhere"), *NOT_FOUND),
    "HEAD": Row(read(f"HEAD {ITEM}"), 200),
    "a wish for compression": Row(read(f"GET {ITEM}", "Accept-Encoding: gzip"), 200),
    "HEAD without a key": Row(raw(f"HEAD {STACKS}"), 401),
    "a query of a get": Row(read(f"GET {ITEM}?limit=0&x"), 200),
    "a query of a create": Row(raw(f"POST {STACKS}?limit=0", BEARER, NEW_KEY, body=BODY), 201),
    "a body of a GET": Row(raw(f"GET {STACKS}", BEARER, body=b"{"), 200),
    # Bodies, but for what only their bytes say
    "the longest body": Row(create(padded(BODY_LIMIT_BYTES)), 201),
    "the longest body in chunks": Row(create(padded(BODY_LIMIT_BYTES), framed="chunks"), 201),
    "a body in small chunks": Row(
        raw(f"POST {STACKS}", BEARER, NEW_KEY, body=padded(BODY_LIMIT_BYTES), framed="chunks", size=96),
        400, errors.SmallChunks,
    ),
    "too long a body": Row(create(padded(BODY_LIMIT_BYTES + 1)), *TOO_LARGE),
    "too long a body in chunks": Row(create(padded(BODY_LIMIT_BYTES + 1), framed="chunks"), *TOO_LARGE),
    "a length of 18 digits": Row(read(f"POST {STACKS}", f"Content-Length: {'9' * 18}"), *TOO_LARGE),
    "a length of 19 digits": Row(read(f"POST {STACKS}", f"Content-Length: {'9' * 19}"), *TOO_LARGE),
    "a truncated body": Row(create(BODY)[:-1], *ENDED),
    "no end of chunks": Row(create(BODY, framed="chunks")[:-5], *ENDED),
    # Idempotency-Key
    "a key in quotes": Row(create(key='Idempotency-Key: "NEW"'), 201),
    "no Idempotency-Key": Row(create(key="A: b"), *NO_IDEMPOTENCY),
    "a blank Idempotency-Key": Row(create(key="Idempotency-Key:  "), *NO_IDEMPOTENCY),
    "two Idempotency-Keys": Row(create(BODY, "Idempotency-Key: b"), *NO_IDEMPOTENCY),
    "two Idempotency-Keys, and no key": Row(
        raw(f"POST {STACKS}", "Authorization: Bearer a", "Idempotency-Key: b", "Idempotency-Key: b"), *NO_KEY
    ),
    "two Idempotency-Keys of a list": Row(read(f"GET {STACKS}", NEW_KEY, NEW_KEY), 200),
    "a long Idempotency-Key": Row(create(key=f"Idempotency-Key: {'k' * 3000}"), *NO_IDEMPOTENCY),
    "a used Idempotency-Key": Row(create(key="Idempotency-Key: USED"), 409, errors.Conflict),
    # Lists
    **reads(f"GET {STACKS}?{{}}", ("", "limit=1&&", "limit=007", "limit=100", "&limit=1"), 200),
    **reads(f"GET {STACKS}?{{}}", (
        "limit=", "limit=0", "limit=101", "limit=+5", "limit=%D9%A3", "limit=1_0", "limit=1e1", "Limit=1",
        "limit=1&limit=1", "x=1", "cursor=", "cursor=a", "limit=%zz", "limit=%ff", f"limit={'9' * 3000}",
    ), *NO_PAGE),
    # Header fields
    "a scheme in any case": Row(raw(f"GET {STACKS}", "authorization: bEARER   KEY"), 200),
    "no credential": Row(raw(f"GET {STACKS}"), *NO_KEY),
    "another scheme": Row(raw(f"GET {STACKS}", "Authorization: Basic KEY"), *NO_KEY),
    "two credentials": Row(raw(f"GET {STACKS}", "Authorization: Bearer KEY KEY"), *NO_KEY),
    "two Authorization fields": Row(read(f"GET {STACKS}", BEARER), *NO_KEY),
    **{
        f"id {sent[:6]!r}": Row(read(f"GET {STACKS}").replace(b"reading/7 3", sent.encode("latin-1")), 200)
        for sent in ("a.b:c_d-e", ODD_ID, "é\tü", "r" * 16000, "x, y", "\xc3\xa9")
    },
    "conditions": Row(read(f"GET {ITEM}", "If-None-Match: *", 'If-Match: "a"', "Range: bytes=0-1"), 200),
    # Malformed HTTP: test_proxy_malformed.py and tests/server have what both reject
    "bare line feeds": Row(read(f"GET {STACKS}").replace(b"\r\n", b"\n"), *BAD),
    "another expectation": Row(create(BODY, "Expect: x"), *BAD),
    "CONNECT": Row(read(f"CONNECT {STACKS}"), *BAD),
}  # fmt: skip
# What nginx 1.22 leaves no choice: the comments of deploy/nginx.conf say so.
BEHIND_NGINX = {
    "two Authorization fields": BAD, "bare line feeds": (200, None), "another expectation": (201, None),
    "a body in small chunks": (201, None), "CONNECT": NOT_ALLOWED, "a truncated body": None,
    "no end of chunks": None,
}  # fmt: skip


@pytest.fixture
def words(proxy, new_key):
    """The values of the words of a request: a manager with a stack, whose Idempotency-Key is USED."""
    key = new_key()
    headers = {"Authorization": f"Bearer {key}", "Idempotency-Key": "used"}
    response = proxy.request("POST", STACKS, headers, json.dumps(configuration(name="other")).encode())
    return {"KEY": key, "ID": json.loads(response.body)["id"], "USED": "used"}


def only(request: bytes, received: bytes) -> Response | None:
    method = request.partition(b" ")[0].decode()
    responses = parse_responses(received, head=method == "HEAD")
    if not responses:
        return None
    [response] = responses
    path = STACKS if b"ID" not in request else f"{STACKS}/id"
    check_response(method, path, response.status, response.headers, response.body)
    return response


def outcome(response: Response | None) -> tuple[int, str | None] | None:
    if response is None:
        return None
    return response.status, response.json.get("message") if response.body else None


def filled(request: bytes, words: dict[str, str]) -> bytes:
    for word, value in (words | {"NEW": str(uuid4())}).items():
        request = re.sub(rf'(?<=[ /"]){word}\b'.encode(), value.encode(), request)
    return request


@pytest.mark.parametrize("name", ROWS)
def test_nginx_changes_no_response(proxy, service, words, name):
    row = ROWS[name]
    with connect(service.port, filled(row.request, words)) as client:
        client.finish()
        direct = only(row.request, client.read_all())
    through = only(row.request, proxy.send(filled(row.request, words)))
    assert outcome(direct) == (row.status, row.error and row.error.message)
    if name in BEHIND_NGINX:
        other = BEHIND_NGINX[name]
        assert outcome(through) == (other and (other[0], other[1] and other[1].message))
        return
    assert outcome(through) == outcome(direct)
    if row.error is not errors.InvalidRequest:
        names = COMPARED + ("ETag", "Content-Encoding") * (row.status == 200)
        assert [through.headers[each] for each in names] == [direct.headers[each] for each in names]


@pytest.mark.parametrize("size", [2_000_000, 8 * 1024 * 1024])
@pytest.mark.parametrize("framing", [{}, {"Transfer-Encoding": "chunked"}], ids=["announced", "chunked"])
def test_bodies_of_up_to_8_megabytes_reach_the_service(proxy, key, framing, size):
    headers = {"Authorization": f"Bearer {key}", "X-Request-Id": ODD_ID.encode("latin-1")}
    body = iter([padded(size)]) if framing else padded(size)
    response = proxy.request("POST", STACKS, headers | framing, body)
    assert (response.status, response.headers["X-Request-Id"]) == (413, ODD_ID)


def test_a_base_path_is_returned_in_location(service, key, tmp_path):
    as_the_file_says = {
        "    location / {\n": "    location / { return 404; }\n    location = /base { return 404; }\n"
        "    location /base/ {\n",
        "proxy_pass http://stackmgr;": "proxy_pass http://stackmgr$stackmgr_below_base;",
        "map $request_uri $stackmgr_allow {":
        'map $request_uri $stackmgr_below_base { "~^/base(?<below_base>/.*)$" $below_base; }\n'
        "map $request_uri $stackmgr_allow {",
        "proxy_redirect off;": "proxy_redirect / /base/; absolute_redirect off;",
    }  # fmt: skip
    with nginx_before(tmp_path, service.port, changes=as_the_file_says) as proxy:
        headers = {"Authorization": f"Bearer {key}", "Idempotency-Key": "k"}
        created = proxy.request("POST", f"/base{STACKS}", headers, BODY)
        location = created.headers["Location"]
        assert (created.status, location) == (201, f"/base{STACKS}/{created.json['id']}")
        assert proxy.request("GET", location, headers).body == created.body
        outside = location.removeprefix("/base")
        for path in ("/", "/base", "/base/", "/base/manager%2Fstacks", STACKS, outside):
            assert (path, proxy.request("GET", path, headers).status) == (path, 404)


def test_expect_100_continue_gets_an_interim_response(proxy, key):
    head = create(BODY, "Expect: 100-continue").partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
    with proxy.connect() as connection:
        connection.sendall(filled(head, {"KEY": key}))
        assert connection.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(BODY)
        assert connection.recv(65536).startswith(b"HTTP/1.1 201 ")
