"""What is a request, and what is none: the worker's own parser, beside gunicorn's and by itself."""

from collections.abc import Iterator

import pytest
from gunicorn.config import Config
from gunicorn.http import message, unreader
from gunicorn.http.errors import ParseException

from stackmgr.server.request import BadRequest, Limits, Request
from tests.support.malformed import A_KEY, A_STACK, good_requests, requests_asked_for, spoiled

LIMITS = Limits(4094, 100, 8190)
STRANGER = ("192.0.2.1", 1)  # gunicorn believes more of a proxy of its own host


def spoiled_heads() -> Iterator[bytes]:
    for data in spoiled(good_requests(A_KEY, A_STACK), requests_asked_for(5000)):
        head, end, _ = data.partition(b"\r\n\r\n")
        if end:
            yield head + end


def told_by_gunicorn(head: bytes) -> tuple[object, ...]:
    config = Config()
    config.set("http_parser", "python")
    request = message.Request(config, unreader.IterUnreader(iter([head])), STRANGER)
    fields: dict[str, str] = {}
    for name, value in request.headers:
        fields[name] = f"{fields[name]},{value}" if name in fields else value
    length = getattr(request.body.reader, "length", None)
    return request.method, request.version, request.uri, request.query, fields, length


def told_by_us(head: bytes) -> tuple[object, ...]:
    request = Request(head, LIMITS)
    return (
        request.method, request.version, request.uri, request.query, dict(request.headers), request.length
    )  # fmt: skip


def test_nothing_is_taken_that_gunicorn_would_refuse_or_take_otherwise():
    taken = 0
    for head in spoiled_heads():
        try:
            ours = told_by_us(head)
        except BadRequest:
            continue
        taken += 1
        assert ours == told_by_gunicorn(head), head
    assert taken > 1000


def test_little_is_refused_that_gunicorn_would_take():
    """Where both differ, it is the few forms that this parser leaves out on purpose."""
    for head in spoiled_heads():
        try:
            theirs = told_by_gunicorn(head)
        except ParseException:
            continue
        try:
            ours = told_by_us(head)
        except BadRequest as ex:
            cause = str(ex)
        else:
            assert ours == theirs, head
            continue
        assert cause in {"Expect", "Content-Length", "Transfer-Encoding"}, head


def get(*fields: str, line: str = "GET /a HTTP/1.1") -> Request:
    return Request("\r\n".join([line, *fields, "", ""]).encode("latin-1"), LIMITS)


@pytest.mark.parametrize(("target", "path", "query"), [
    ("/a?b=c?d", "/a", "b=c?d"), ("/a%20b?%20", "/a b", "%20"), ("//a//b", "//a//b", ""),
    ("/a#b", "/a", ""), ("http://host/a?b", "/a", "b"), ("http://host", "", ""), ("/%C3%A9", "/\xc3\xa9", ""),
])  # fmt: skip
def test_the_request_target_in_its_parts(target, path, query):
    request = get(line=f"GET {target} HTTP/1.1")
    assert (request.uri, request.path, request.query) == (target, path, query)


@pytest.mark.parametrize("line", [
    "get /a HTTP/1.1", "GE /a HTTP/1.1", "GET  /a HTTP/1.1", "GET a HTTP/1.1", "GET * HTTP/1.1", "GET /a HTTP/2.0",
    "GET /a HTTP/1.10", "GET /a http/1.1", "GET /a\xe9 HTTP/1.1", "GET /a\t HTTP/1.1", " GET /a HTTP/1.1",
    "GET /a", "GET http://[a/b HTTP/1.1", "G[T /a HTTP/1.1", "\r\n\r\nGET /a HTTP/1.1",
    "GET /" + "a" * 4090 + " HTTP/1.1",
])  # fmt: skip
def test_a_request_line_that_is_none(line):
    with pytest.raises(BadRequest):
        get(line=line)


@pytest.mark.parametrize("fields", [
    ("A : b",), (" A: b",), (": b",), ("A",), ("A: b\0",), ("A: b\x7f",), ("A: b\nB: c",), ("A: b\rB: c",), ("A: b", " c"),
    ("Host: a", "host: a"), ("Content-Type: a",) * 2, ("Content-Length: 1",) * 2, ("Content-Length: +1",),
    ("Content-Length: 1,1",), ("Content-Length: ",), ("Content-Length: \xb2",), ("Content-Length: " + "9" * 19,),
    ("Transfer-Encoding: gzip",), ("Transfer-Encoding: gzip, chunked",), ("Transfer-Encoding: chunked",) * 2,
    ("Transfer-Encoding: ",), ("Content-Length: 1", "Transfer-Encoding: chunked"), ("Expect: x",),
    ("A: " + "b" * 8190,), ("A: b",) * 101,
])  # fmt: skip
def test_fields_that_cannot_be(fields):
    with pytest.raises(BadRequest):
        get(*fields)


def test_fields_in_the_environ():
    request = get("X-A: 1", "x-a:\t2 ", "X_A: 3", "Content-Type: t", "Content-Length: 007", "X-B:\xe9")
    assert request.environ == {
        "HTTP_X_A": "1,2", "CONTENT_TYPE": "t", "CONTENT_LENGTH": "007", "HTTP_X_B": "\xe9"
    }  # fmt: skip
    assert request.length == 7


@pytest.mark.parametrize(("line", "fields", "closes"), [
    ("GET /a HTTP/1.1", (), False), ("GET /a HTTP/1.1", ("Connection: Close",), True), ("GET /a HTTP/1.0", (), True),
    ("GET /a HTTP/1.0", ("Connection: Keep-Alive",), False), ("GET /a HTTP/1.1", ("Connection: te, close",), True),
    ("CONNECT a:1 HTTP/1.1", (), True),
])  # fmt: skip
def test_whether_the_connection_stays(line, fields, closes):
    assert get(*fields, line=line).must_close is closes


def test_who_waits_for_an_invitation():
    assert get("Expect: 100-Continue").expects_continue
    assert not get("Expect: 100-continue", line="GET /a HTTP/1.0").expects_continue
    assert not get().expects_continue


def test_a_trailer_that_would_change_the_request_is_refused():
    request = get("Transfer-Encoding: chunked")
    assert request.parse_headers(b"X-A: b", from_trailer=True) == [("HTTP_X_A", "b")]
    for line in (b"Host: a", b"Authorization: b", b"Content-Length: 1", b"broken"):
        with pytest.raises(BadRequest):
            request.parse_headers(line, from_trailer=True)
