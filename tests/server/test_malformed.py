"""Responses of the server itself, without a process: to malformed requests and failing applications."""

import random
import re
from collections import Counter
from itertools import pairwise

import pytest

from stackmgr import errors
from tests.server.app import INVALID, RAISED
from tests.server.gunicorn_process import assert_error_object, chunked, get, head, post
from tests.server.memory_server import PEER, cuts, head_of
from tests.support.malformed import fuzz_request_count, malformed_requests
from tests.support.openapi import BUNDLE, nodes

FUZZ_REQUESTS = fuzz_request_count(2000)
UUID4 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


LINES = (
    "GARBAGE", "GET /a", "GET  /a HTTP/1.1", " GET /a HTTP/1.1", "\r\n\r\nGET /a HTTP/1.1", "G{T /a HTTP/1.1",
    "GET /a HTTP/2.0", "GET /a HTTP/1.10", "GET /a http/1.1", "GET /a\xe9 HTTP/1.1", "GET /a\t HTTP/1.1",
    "GET a HTTP/1.1", "GET * HTTP/1.1", "GET /a#b HTTP/1.1", "GET x://y/a HTTP/1.1", "GET a?:// HTTP/1.1",
    "GET http:///a HTTP/1.1", "GET http://[a/b HTTP/1.1", "GET http://a@b/c HTTP/1.1", "CONNECT /a HTTP/1.1",
    "CONNECT a HTTP/1.1", "GET /a HTTP/1.1\nX: y", "GET /" + "a" * 4081 + " HTTP/1.1",
)  # fmt: skip
HOSTS = ("a b", "a/b", "a:b", "[::1", "a@b", "%4", "a:1:2", "\xe9", "http://a", "a#b", "[]", "a%:1")
FIELDS = (
    ("A : SECRET",), (" A: SECRET",), (": SECRET",), ("Authorization Bearer SECRET",), ("X A: SECRET",),
    ("A: a", " SECRET"), ("A: SECRET\0",), ("A: \x01SECRET",), ("A: SECRET\x7f",), ("A: b\nSECRET: c",),
    ("A: b\rSECRET: c",), ("host: a",), ("Content-Type: a",) * 2, ("Content-Length: 1",) * 2,
    ("Content-Length: +1",), ("Content-Length: 1,1",), ("Content-Length: ",), ("Content-Length: \xb2",),
    ("Content-Length: 9 9",), ("Transfer-Encoding: gzip",), ("Transfer-Encoding: gzip, chunked",),
    ("Transfer-Encoding: ",), ("Transfer-Encoding: chunked",) * 2, ("Transfer-Encoding: xchunked",),
    ("Content-Length: 1", "Transfer-Encoding: chunked"), ("Expect: SECRET",), ("A: " + "b" * 8186,),
    ("A: b",) * 100,
)  # fmt: skip
CHUNKS = {
    "size": b"3\r\nabc\r\nSECRET\r\n\r\n", "negative size": b"3\r\nabc\r\n-1\r\n\r\n",
    "no size": b"3\r\nabc\r\n\r\n", "long size line": b"1;" + b"a" * 20_000,
    "extension": b"3;\x01\r\nabc\r\n0\r\n\r\n",
    "size line of 8,193 bytes": b"1;%s\r\nx\r\n0\r\n\r\n" % (b"a" * 8191),
    "long extensions": b"1;%s\r\nx\r\n" % (b"a" * 7994) * 3, "end of a chunk": b"3\r\nabcd\r\n0\r\n\r\n",
    "tiny chunks": b"1\r\nx\r\n" * 3276 + b"0\r\n\r\n", "trailer": b"0\r\nSECRET\r\n\r\n",
    "bare LF in a trailer": b"0\r\nX-A: b\n\r\n\r\n",
    "long trailers": b"0\r\n" + b"X-A: aaaaaaa\r\n" * 10000,
    **{name: b"0\r\n%s: 3\r\n\r\n" % name.encode() for name in (
        "Host", "Authorization", "Content-Length", "TE", "Trailer", "Transfer-Encoding")},
}  # fmt: skip
BAD = {
    **{f"line {line[:20]!r}": head(line) for line in LINES},
    **{f"host {host}": head("GET /a HTTP/1.1", host=host) for host in HOSTS},
    **{f"fields {', '.join(fields)[:50]!r}": head("GET /a HTTP/1.1", *fields) for fields in FIELDS},
    **{f"chunks: {name}": chunked("/echo", end=end) for name, end in CHUNKS.items()},
    "host of HTTP/1.0": head("GET /a HTTP/1.0", host="a b"), "no host": b"GET / HTTP/1.1\r\n\r\n",
    "bare LF": b"GET / HTTP/1.1\nHost: x\n\n", "LF alone": b"\n", "two empty lines": b"\r\n\r\n",
    "chunked 1.0": head("POST /a HTTP/1.0", "Transfer-Encoding: chunked"),
    "endless head": get("/", *["X-A: aaaaaaa"] * 10000)[:-2], "endless line": b"GET /" + b"a" * 100_000,
    "head of 65,537 bytes": head_of(65_537),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_request_gets_an_error_object(memory, name):
    response = memory.request(BAD[name])
    assert_error_object(response)
    # Rejected for what it is, not for its end.
    is_small = name in {"chunks: tiny chunks", "chunks: long extensions"}
    kind = errors.SmallChunks if is_small else errors.InvalidRequest
    assert response.json["message"] == kind.message
    assert memory.nr == 0
    [line] = memory.log.lines
    assert "SECRET" not in line + response.body.decode()
    assert line.startswith(f"Rejected a request from {PEER}: ")
    expected = memory.sent_for(BAD[name])
    for pieces in cuts(BAD[name]):
        assert memory.sent_for(*pieces) == expected, pieces


def described(code: str) -> set[str]:
    errors = [node for _, node in nodes(BUNDLE) if node.keys() == {"code", "message", "request_id"}]
    return {error["message"] for error in errors if error["code"] == code}


@pytest.mark.parametrize(("sent", "kind"), [
    (b"GARBAGE\r\n\r\n", "InvalidRequest"), (post("/echo", b"abcde")[:-2], "IncompleteRequest"),
    (b"GET / HTTP/1.1\r\nHost", "RequestTimedOut"), (chunked("/echo", *[b"x"] * 3300), "SmallChunks"),
    (get(next(iter(RAISED))), "ServiceError"),
])  # fmt: skip
def test_error_messages_are_described(memory, sent, kind):
    client = memory.connect(sent)
    if is_late := kind == "RequestTimedOut":
        memory.pass_time(11)
    else:
        client.finish()
    response = client.response()
    expected = getattr(errors, kind)
    assert_error_object(response, expected.status, expected.code)
    assert response.json["message"] == expected.message
    assert expected.message in described(expected.code)
    assert response.headers["Retry-After"] == ("1" if is_late else None)
    logged = {"request_id": response.json["request_id"], "status": expected.status, "code": expected.code}
    assert memory.log.fields == logged | ({"reason": "request_timed_out"} if is_late else {})
    assert memory.log.levels == ["error"] * (kind == "ServiceError") + ["warning"]


@pytest.mark.parametrize(("lines", "expected"), [
    (b"X-Request-Id: abc-1", "abc-1"), (b"x-REQUEST-id: \t a b\t ", "a b"),
    (b"X-Request-Id: \xc3\xa9\xff\x80", "\xc3\xa9\xff\x80"), (b"X-Request-Id: a\r\nX-Request-Id: b", "a,b"),
    (b'X-Request-Id: "}\\', '"}\\'), (b"X-Request-Id:   ", None), (b"X-Request-Id: a\x00b", None),
    (b"X-Request-Id: a\nX-Inj: b", None), (b"X_Request_Id: a", None), (b"", None),
])  # fmt: skip
def test_request_id_of_an_error(memory, lines, expected):
    head = b"HTTP? / nonsense\r\n" + (lines + b"\r\n" if lines else b"")
    start = b"GET / HTTP/1.1\r\nHost: x\r\n"
    chunk = head.partition(b"\n")[2] + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n"
    for request in (head + b"\r\n", start + b"Broken\r\n" + lines + b"\r\n\r\n", start + chunk):
        response = memory.request(request)
        assert_error_object(response, request_id=expected)
        if expected is None:
            assert UUID4.fullmatch(response.headers["x-request-id"])
            assert "x-inj" not in response.headers


@pytest.mark.parametrize("start", [b"", b"\r\n"])
@pytest.mark.parametrize("rest", [b"Expect: x\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\nzz\r\n"])
def test_head_gets_no_error_body(memory, start, rest):
    client = memory.connect(start + b"HEAD / HTTP/1.1\r\nHost: x\r\n" + rest)
    response = client.response("HEAD")
    assert_error_object(response, body=False)
    assert int(response.headers["content-length"]) > 0
    assert client.is_ended()


@pytest.mark.parametrize("path", [*RAISED, *INVALID, "/never-starts", "/starts-twice", "/late"])
def test_an_unexpected_exception_is_a_500(memory, path):
    client = memory.connect(get(path, "X-Request-Id: mine") + get("/next"))
    response = client.response()
    assert_error_object(response, 500, "internal_error", "mine")
    assert (client.is_ended(), memory.queue._free) == (True, 1)
    assert "SECRET" not in "".join(memory.log.lines) + response.body.decode()


def test_fuzz(memory):
    """Any bytes, however split, get responses, Error objects with their ids, or a closed connection."""
    outcomes, chance = Counter(), random.Random(1)
    for number, data in enumerate(malformed_requests(FUZZ_REQUESTS)):
        sent, is_closed = memory.sent_for(data)
        places = sorted({0, len(data), *(chance.randrange(len(data)) for _ in range(5))})
        assert memory.sent_for(*(data[a:b] for a, b in pairwise(places))) == (sent, is_closed), (number, data)
        if number % 10 == 0 and len(data) < 2000:
            assert memory.sent_for(*(data[at : at + 1] for at in range(len(data)))) == (sent, is_closed), data
        outcomes["rejected by the server" if sent.endswith(b" 400 ") else sent[9:12]] += 1
        assert sent[9:12] in (b"200", b"400", b""), (number, data)
        assert is_closed, (number, data)
    assert outcomes["rejected by the server"] > FUZZ_REQUESTS / 4
