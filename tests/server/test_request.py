"""The worker's request parser: valid and invalid heads, also compared with gunicorn's parser."""

import tracemalloc
from collections.abc import Iterator

import pytest
from gunicorn.config import Config
from gunicorn.http import message, unreader
from gunicorn.http.errors import ParseException

from stackmgr.server.request import BadRequest, HeadLimits, ReceivedRequest, find_section_end
from tests.support.malformed import (
    SAMPLE_KEY,
    SAMPLE_STACK_ID,
    fuzz_request_count,
    malformed_requests,
    valid_requests,
)

GUNICORN = Config()
GUNICORN.set("http_parser", "python")
GUNICORN.set("permit_unconventional_http_method", True)
LIMITS = HeadLimits(4094, 100, 8190)
STRANGER = ("192.0.2.1", 1)  # gunicorn believes more of a proxy of its own host


def malformed_heads() -> Iterator[bytes]:
    for data in malformed_requests(valid_requests(SAMPLE_KEY, SAMPLE_STACK_ID), fuzz_request_count(5000)):
        head, end, _ = data.partition(b"\r\n\r\n")
        if end:
            yield head + end


def parsed_by_gunicorn(head: bytes) -> tuple[object, ...]:
    request = message.Request(GUNICORN, unreader.IterUnreader(iter([head])), STRANGER)
    fields: dict[str, str] = {}
    for name, value in request.headers:
        fields[name] = f"{fields[name]},{value}" if name in fields else value
    length = getattr(request.body.reader, "length", None)
    return request.method, request.version, request.uri, request.query, fields, length


def parsed_by_us(head: bytes) -> tuple[object, ...]:
    request = ReceivedRequest(head, LIMITS)
    fields = {name.removeprefix("HTTP_").replace("_", "-"): value for name, value in request.environ.items()}
    return request.method, request.version, request.uri, request.query, fields, request.length


def test_every_accepted_head_is_parsed_alike_by_gunicorn():
    accepted = 0
    for head in malformed_heads():
        try:
            ours = parsed_by_us(head)
        except BadRequest:
            continue
        accepted += 1
        assert ours == parsed_by_gunicorn(head), head
    assert accepted > 1000


def test_heads_rejected_beyond_gunicorn_are_of_known_kinds():
    """Where both differ, it is the few forms that this parser leaves out on purpose."""
    for head in malformed_heads():
        try:
            theirs = parsed_by_gunicorn(head)
        except ParseException:
            continue
        try:
            ours = parsed_by_us(head)
        except BadRequest as ex:
            cause = str(ex)
        else:
            assert ours == theirs, head
            continue
        assert cause in {
            "Expect",
            "Content-Length",
            "Transfer-Encoding",
            "no Host",
            "Host",
            "request target",
        }, head


def get(*fields: str, line: str = "GET /a HTTP/1.1", host: str | None = "x") -> ReceivedRequest:
    named = any(field.lower().startswith("host:") for field in fields)
    hosts = [] if host is None or named else [f"Host: {host}"]
    return ReceivedRequest("\r\n".join([line, *hosts, *fields, "", ""]).encode("latin-1"), LIMITS)


@pytest.mark.parametrize(("target", "path", "query"), [
    ("/a?b=c?d", "/a", "b=c?d"), ("/a%20b?%20", "/a b", "%20"), ("//a//b", "//a//b", ""),
    ("http://host/a?b", "/a", "b"), ("http://host", "", ""), ("/%C3%A9", "/\xc3\xa9", ""),
])  # fmt: skip
def test_request_target_is_split(target, path, query):
    request = get(line=f"GET {target} HTTP/1.1")
    assert (request.uri, request.path, request.query) == (target, path, query)


@pytest.mark.parametrize("method", ["GET", "get", "foo", "A", "M-SEARCH", "a" * 300, "!#$%&'*+-.^_`|~09"])
def test_a_method_is_any_token(method):
    assert get(line=f"{method} /a HTTP/1.1").method == method


@pytest.mark.parametrize("line", [
    "GET  /a HTTP/1.1", "GET a HTTP/1.1", "GET * HTTP/1.1", "GET /a HTTP/2.0",
    "GET /a HTTP/1.10", "GET /a http/1.1", "GET /a\xe9 HTTP/1.1", "GET /a\t HTTP/1.1", " GET /a HTTP/1.1",
    "GET /a", "GET http://[a/b HTTP/1.1", "GET /a#b HTTP/1.1", "GET x://y/a HTTP/1.1", "GET a?:// HTTP/1.1", "GET http:///a HTTP/1.1",
    "GET http://a@b/c HTTP/1.1", "CONNECT /a HTTP/1.1", "CONNECT a HTTP/1.1", "G[T /a HTTP/1.1", "\r\n\r\nGET /a HTTP/1.1",
    "GET /" + "a" * 4090 + " HTTP/1.1",
])  # fmt: skip
def test_invalid_request_line_is_rejected(line):
    with pytest.raises(BadRequest):
        get(line=line)


@pytest.mark.parametrize("fields", [
    ("A : b",), (" A: b",), (": b",), ("A",), ("A: b\0",), ("A: b\x7f",), ("A: b\nB: c",), ("A: b\rB: c",), ("A: b", " c"),
    ("Host: a", "host: a"), ("Content-Type: a",) * 2, ("Content-Length: 1",) * 2, ("Content-Length: +1",),
    ("Content-Length: 1,1",), ("Content-Length: ",), ("Content-Length: \xb2",), ("Content-Length: 9 9",),
    ("Transfer-Encoding: gzip",), ("Transfer-Encoding: gzip, chunked",), ("Transfer-Encoding: chunked",) * 2,
    ("Transfer-Encoding: ",), ("Content-Length: 1", "Transfer-Encoding: chunked"), ("Expect: x",),
    ("A: " + "b" * 8190,), ("A: b",) * 101,
])  # fmt: skip
def test_invalid_fields_are_rejected(fields):
    with pytest.raises(BadRequest):
        get(*fields)


@pytest.mark.parametrize("fields", [("A: b",) * (LIMITS.fields - 1), ("A: " + "b" * (LIMITS.field - 5),)])
def test_as_many_fields_and_bytes_as_the_limits_allow_are_accepted(fields):
    assert len(get(*fields, line="GET /" + "a" * (LIMITS.line - 14) + " HTTP/1.1").environ) == 2


@pytest.mark.parametrize("times", [2, 3])
def test_an_idempotency_key_that_is_repeated_is_none(times):
    fields = ["Idempotency-Key: a"] * times
    assert get(*fields).environ["HTTP_IDEMPOTENCY_KEY"] == ""


@pytest.mark.parametrize("digits", ["9" * 18, "9" * 19, "1" + "0" * 8000, "0" * 8000 + "9" * 19])
def test_a_length_of_any_number_of_digits_is_a_length(digits):
    request = get(f"Content-Length: {digits}")
    assert request.length == int(request.environ["CONTENT_LENGTH"]) >= 10**18 - 1


def test_zeros_before_a_length_are_dropped():
    request = get("Content-Length: " + "0" * 8000 + "7")
    assert (request.length, request.environ["CONTENT_LENGTH"]) == (7, "7")
    assert get("Content-Length: " + "0" * 8000).length == 0


def test_fields_in_the_environ():
    request = get("X-A: 1", "x-a:\t2 ", "X_A: 3", "Content-Type: t", "Content-Length: 007", "X-B:\xe9")
    assert request.environ == {
        "HTTP_HOST": "x", "HTTP_X_A": "1,2", "CONTENT_TYPE": "t", "CONTENT_LENGTH": "007", "HTTP_X_B": "\xe9"
    }  # fmt: skip
    assert request.length == 7


@pytest.mark.parametrize(("line", "fields", "closes"), [
    ("GET /a HTTP/1.1", (), False), ("GET /a HTTP/1.1", ("Connection: Close",), True), ("GET /a HTTP/1.0", (), True),
    ("GET /a HTTP/1.0", ("Connection: Keep-Alive",), False), ("GET /a HTTP/1.1", ("Connection: te, close",), True),
    ("CONNECT a:1 HTTP/1.1", (), True),
])  # fmt: skip
def test_connection_persistence(line, fields, closes):
    assert get(*fields, line=line).must_close is closes


def test_expectation_of_100_continue():
    assert get("Expect: 100-Continue").expects_continue
    assert not get("Expect: 100-continue", line="GET /a HTTP/1.0").expects_continue
    assert not get().expects_continue


def test_trailer_that_would_change_the_request_is_rejected():
    request = get("Transfer-Encoding: chunked")
    request.check_trailers(b"X-A: b\r\n")
    for line in (b"Host: a", b"Authorization: b", b"Content-Length: 1", b"broken"):
        with pytest.raises(BadRequest):
            request.check_trailers(line + b"\r\n")


@pytest.mark.parametrize("host", ["a", "", "a:80", "a:", "127.0.0.1", "[::1]:80", "a.b-c_d", "%41", "a,b"])
def test_a_valid_host(host):
    assert get(host=host).environ["HTTP_HOST"] == host


@pytest.mark.parametrize(
    "host", ["a b", "a/b", "a:b", "[::1", "a@b", "%4", "a:1:2", "\xe9", "http://a", "a#b", "[]", "a%:1"]
)
def test_an_invalid_host(host):
    for version in ("1.0", "1.1"):
        with pytest.raises(BadRequest):
            get(host=host, line=f"GET /a HTTP/{version}")


def test_only_http10_needs_no_host():
    assert get(host=None, line="GET /a HTTP/1.0").path == "/a"
    with pytest.raises(BadRequest):
        get(host=None)


def test_long_field_names_are_not_cached():
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(300):
            with pytest.raises(BadRequest):
                get(f"{'a' * 60_000}{number}: b")
            get(f"{'a' * 8_000}{number}: b")
        assert tracemalloc.get_traced_memory()[0] - before < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("length", [65_536, 65_537])
def test_the_limit_of_a_head_does_not_depend_on_how_it_is_cut(length):
    head = bytearray(b"GET / HTTP/1.1\r\nHost: x\r\n")
    head += b"X: " + b"a" * (length - len(head) - 7) + b"\r\n\r\n"
    for cut in (0, 1000, length - 3, length - 1):
        if length <= 65_536:
            assert find_section_end(head[:cut], 0) == 0
            assert find_section_end(head, cut) == length
        else:
            with pytest.raises(BadRequest):
                find_section_end(head, cut)


def test_a_bare_line_feed_is_found_wherever_the_head_is_cut():
    head = bytearray(b"GET / HTTP/1.1\r\nHost: x\r\nA: b\nC: d\r\n")
    for cut in range(len(head)):
        searched = 0
        with pytest.raises(BadRequest):
            for end in (cut, len(head)):
                find_section_end(head[:end], searched)
                searched = end
    for end in range(29):  # no line feed here is bare, though some pieces begin with one
        find_section_end(head[:end], max(0, end - 1))
