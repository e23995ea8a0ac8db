"""Exchanges with ordinary clients, without a process, and their WSGI side."""

import hashlib
import io
import random
import time
from email.utils import parsedate_to_datetime
from unittest.mock import MagicMock, Mock

import pytest

from stackmgr.limits import BODY_LIMIT_BYTES
from stackmgr.server.client import DRAIN_LIMIT
from tests.server.gunicorn_process import chunked, get, head, post
from tests.server.memory_server import PEER, MemoryServer, cuts, head_of


def pieces_of(data, size):
    return [data[at : at + size] for at in range(0, len(data), size)]


@pytest.mark.parametrize(("request_", "version", "connection"), [
    (head("GET / HTTP/1.1"), 11, "keep-alive"), (head("GET / HTTP/1.2"), 11, "keep-alive"),
    (head("GET / HTTP/1.9"), 11, "keep-alive"), (head("GET / HTTP/1.1", "Connection: Close"), 11, "close"),
    (head("GET / HTTP/1.1", "Connection: te, close"), 11, "close"), (head("CONNECT a:1 HTTP/1.1"), 11, "close"),
    (b"GET / HTTP/1.0\r\n\r\n", 10, "close"), (head("GET / HTTP/1.0", "Connection: Keep-Alive"), 10, "keep-alive"),
    (chunked("/echo").replace(b"Host", b"Connection: close\r\nHost"), 11, "close"),
])  # fmt: skip
def test_version_and_connection_of_a_response(memory, request_, version, connection):
    client = memory.connect(request_)
    response = client.response()
    assert (response.version, response.headers["connection"]) == (version, connection)
    assert client.is_ended() == (connection == "close")


@pytest.mark.parametrize(("request_", "keepalive", "is_alive"), [
    (get("/", "Connection: close"), 3, True), (get("/"), 0, True), (get("/"), 3, False),
])  # fmt: skip
def test_what_follows_the_last_is_discarded(request_, keepalive, is_alive):
    with MemoryServer(keepalive=keepalive) as memory:
        memory.alive, memory.stops_at = is_alive, 2000.0
        client = memory.connect(request_ + get("/next"))
        assert client.response().headers["connection"] == "close"
        assert client.is_ended()
        client.send(bytes(DRAIN_LIMIT - 1))
        assert (client.is_closed, len(client.served._inbox)) == (False, 0)
        client.send(b"x")
        assert client.is_closed


def test_environ_is_that_of_pep_3333(memory):
    sent = get("/environ?a=1&b=%20", "X-A: 1", "x-a:\t2 ", "X_A: 3", "Content-Type: text/x", "X-B: \xe9")
    client = memory.connect(sent + get("/environ"))
    environ, following = client.response().json, client.response().json
    assert environ.keys() - following.keys() == {"HTTP_X_A", "HTTP_X_B", "CONTENT_TYPE"}
    expected = {
        "REQUEST_METHOD": "GET", "QUERY_STRING": "a=1&b=%20", "PATH_INFO": "/environ", "SCRIPT_NAME": "",
        "RAW_URI": "/environ?a=1&b=%20",
        "SERVER_PROTOCOL": "HTTP/1.1", "SERVER_NAME": "::1", "SERVER_PORT": str(memory.port),
        "REMOTE_ADDR": PEER, "REMOTE_PORT": "1", "HTTP_HOST": "x", "HTTP_X_A": "1,2", "HTTP_X_B": "\xe9",
        "CONTENT_TYPE": "text/x", "wsgi.url_scheme": "http", "wsgi.multithread": True,
        "wsgi.multiprocess": False, "wsgi.run_once": False, "wsgi.input_terminated": True,
    }  # fmt: skip
    assert {key: environ.get(key) for key in expected} == expected
    assert "CONTENT_LENGTH" not in environ and "HTTP_CONTENT_TYPE" not in environ
    assert memory.request(get("/%C3%A9%20")).headers["x-path"] == b"/\xc3\xa9 ".hex()


def test_forwarding_headers_change_nothing(memory):
    spoof = ("SCRIPT_NAME: /evil", "Script-Name: /evil", "PATH_INFO: /evil", "X-Forwarded-Proto: https",
             "X-Forwarded-Ssl: off", "X-Forwarded-Protocol: ssl", "X-Forwarded-For: 6.6.6.6")  # fmt: skip
    environ = memory.request(get("/environ", *spoof)).json
    kept = [environ[key] for key in ("SCRIPT_NAME", "PATH_INFO", "wsgi.url_scheme", "REMOTE_ADDR")]
    assert kept == ["", "/environ", "http", PEER]


@pytest.mark.parametrize("length", [0, 1, 8192, 65536, BODY_LIMIT_BYTES])
def test_body_arrives_complete(memory, length):
    body = random.Random(length).randbytes(length)
    digest = hashlib.sha256(body).hexdigest()
    for request in (post("/echo", body), chunked("/echo", *pieces_of(body, 100))):
        client = memory.connect(*pieces_of(request, 1000))
        assert client.response().json == {"length": length, "sha256": digest}


LARGE = get("/smuggled") * (BODY_LIMIT_BYTES // 30)


@pytest.mark.parametrize("request_", [
    post("/echo", LARGE), chunked("/echo", LARGE), chunked("/echo", *pieces_of(LARGE, 100))
], ids=["length", "chunk", "chunks"])  # fmt: skip
def test_a_body_over_the_limit_is_413(memory, request_):
    response = memory.request(request_)
    assert (response.status, response.json) == (413, {"read": "too large"})
    assert response.headers["connection"] == "close"
    assert memory.nr == 1
    assert memory.sent_for(*pieces_of(request_, 1000)) == memory.sent_for(request_)


SERIES = b"".join(get(f"/{n}") + post("/echo", b"x" * n) + chunked("/echo", b"y" * (n + 1)) for n in range(3))
ORDINARY = {
    "get": get("/"), "head": head("HEAD /a HTTP/1.1"), "minor version": head("GET / HTTP/1.9"),
    "HTTP/1.0": b"GET / HTTP/1.0\r\n\r\n", "kept HTTP/1.0": head("GET / HTTP/1.0", "Connection: keep-alive"),
    "lowercase method": head("get / HTTP/1.1"), "absolute": head("GET http://a/b HTTP/1.1"),
    "length": post("/echo", b"abc"), "chunks": chunked("/echo", b"abc", b"d"), "pipeline": SERIES,
    "extensions": chunked("/echo", end=b'3;a=b;c="d"\r\nabc\r\n0 ;e\r\nX-T: 1\r\n\r\n') + get("/next"),
    "long extensions": chunked("/echo", end=b"1;%s\r\nx\r\n" % (b"a" * 7994) * 2 + b"0\r\n\r\n"),
    "tiny chunks": chunked("/echo", *[b"x"] * 3275), "head of 65,536 bytes": head_of(65_536),
    "unread body": post("/reject", get("/smuggled") * 9000),
    "not found": post("/echo", b"x", "Connection: close") + get("/no"),
    "empty line": post("/echo", b"abc") + b"\r\n", "and more": post("/echo", b"abc") + b"\r\n" + get("/next"),
}  # fmt: skip


@pytest.mark.parametrize("name", ORDINARY)
def test_requests_may_be_cut_anywhere(memory, name):
    expected, is_closed = memory.sent_for(ORDINARY[name])
    assert expected.startswith((b"HTTP/1.1 2", b"HTTP/1.0 2", b"HTTP/1.1 413"))
    assert is_closed
    assert memory.log.lines == []
    for pieces in cuts(ORDINARY[name]):
        assert memory.sent_for(*pieces) == (expected, True), pieces


def test_expect_100_continue(memory):
    for sent in (chunked("/echo", b"x" * 10), post("/echo", b"x" * 10)):
        head, _, body = sent.replace(b"\r\n", b"\r\nExpect: 100-continue\r\n", 1).partition(b"\r\n\r\n")
        client = memory.connect(head + b"\r\n\r\n")
        assert client.read_all() == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.send(body[:5], body[5:])
        assert client.response().json["length"] == 10
    for sent in (head + b"\r\n\r\n" + body, get("/", "Expect: 100-continue")):  # is complete at once
        assert memory.connect(sent).read_all().startswith(b"HTTP/1.1 200")
    large = b"POST /reject HTTP/1.1\r\nHost: x\r\nContent-Length: 9000000\r\nExpect: 100-continue\r\n\r\n"
    for request in (large, large.replace(b"/reject", b"/echo")):
        assert memory.request(request).status == 413
    assert memory.connect((head + b"\r\n\r\n").replace(b"HTTP/1.1", b"HTTP/1.0")).read_all() == b""
    late = memory.connect(head)
    late.finish()
    assert late.read_all().startswith(b"HTTP/1.1 400")  # no 100 before it


ENDLESS = {
    "line": b"GET /" + b"a" * 2_000_000, "fields": get("/")[:-2] + b"X-A: a\r\n" * 300_000, "empty lines": b"\r\n" * 500_000,
    "chunks": chunked("/echo", *[b"x"] * 300_000), "size line": chunked("/echo", end=b"1;" + b"a" * 2_000_000),
    "trailers": chunked("/echo", end=b"0\r\n" + b"X-A: a\r\n" * 300_000), "chunk": chunked("/echo", b"x" * 2_000_000),
    "length": b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 262144\r\n\r\n" + b"x" * 262_143,
}  # fmt: skip


@pytest.mark.parametrize("name", ENDLESS)
def test_memory_of_a_connection_is_bounded(memory, name):
    client, most = memory.connect(), 0  # bytes
    for at in range(0, len(ENDLESS[name]), 65_536):
        client.send(ENDLESS[name][at : at + 65_536])
        most = max(most, client.served.held, len(client.served._inbox))
    assert most <= BODY_LIMIT_BYTES + 65_536
    assert len(client.read_all()) < 1_000


def responding(headers, pieces):
    def app(_, start_response):
        write = start_response("200 OK", list(headers))
        for piece in pieces[:-1]:
            write(piece)
        return pieces[-1:]

    return app


@pytest.mark.parametrize(("headers", "pieces", "length", "body", "connection"), [
    ((), (b"one", b"two", b"", b"three"), "11", b"onetwothree", "keep-alive"),
    ((), (), "0", b"", "keep-alive"),
    ((("Content-Length", "9"),), (b"abc",), "3", b"abc", "keep-alive"),
    ([(name, "x") for name in ("Connection", "Keep-Alive", "Transfer-Encoding", "Date", "Server")], (b"a",), "1", b"a",
     "keep-alive"),
])  # fmt: skip
def test_a_response_has_the_length_of_its_body(memory, headers, pieces, length, body, connection):
    memory.wsgi = responding(headers, pieces)
    began, client = int(time.time()), memory.connect(get("/"))
    head, _, found = client.read_all().partition(b"\r\n\r\n")
    fields = dict(line.split(": ") for line in head.decode().split("\r\n")[1:])
    assert (fields.pop("Content-Length"), found, fields.pop("Connection")) == (length, body, connection)
    assert began <= parsedate_to_datetime(fields.pop("Date")).timestamp() <= time.time()
    assert fields == {"Server": "gunicorn"}
    assert client.is_ended() == (connection == "close")


def test_head_has_the_length_and_no_body(memory):
    for pieces in ((b"abc",), ()):  # an application may announce what it does not make
        memory.wsgi = responding([("Content-Length", "3")], pieces)
        client = memory.connect(head("HEAD / HTTP/1.1") + get("/"))
        assert client.response("HEAD").headers["content-length"] == "3"
        assert client.response().body == b"".join(pieces)


def test_an_application_may_change_its_mind(memory):
    response = memory.request(get("/change-of-mind"))
    assert (response.status, response.headers["X-Early"], response.body) == (404, None, b"none")
    content = io.BytesIO(b"x")
    memory.wsgi = lambda _, start_response: start_response("200 OK", []) and content
    assert memory.request(get("/")).body == b"x"
    assert content.closed
    content = MagicMock(__iter__=Mock(side_effect=OSError))
    assert memory.request(get("/")).status == 500
    content.close.assert_called_once()
