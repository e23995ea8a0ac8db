"""What ordinary clients do: real gunicorn processes, raw sockets, deadlines shortened by the configuration."""

import hashlib
import random
import re
import socket
import time

import pytest

from tests.server.gunicorn_process import LONG_DEADLINES, chunked, get, post


def test_kept_connection_serves_request_after_request(server):
    with server.connect() as sock:
        for number in range(50):
            sock.send(get(f"/{number}"))
            response = sock.response()
            assert (response.status, response.json["path"]) == (200, f"/{number}")
            assert response.headers["connection"] == "keep-alive"
            assert re.fullmatch(r"\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT", response.headers["date"])


def test_head_and_body_leave_in_one_packet(server):
    with server.connect(get("/one")) as sock:
        assert b"/one" in sock.read_some().partition(b"\r\n\r\n")[2]


def test_http10_and_connection_close_close_the_connection(start):
    server = start("keepalive = 60", deadlines=LONG_DEADLINES)
    for request in (b"GET / HTTP/1.0\r\n\r\n", get("/", "Connection: close")):
        with server.connect(request) as sock:
            assert sock.response().headers["connection"] == "close"
            sock.seconds_until_closed(20)


def test_environ_is_that_of_pep_3333(server):
    environ = server.request(
        get("/environ?a=1&b=%20", "X-A: 1", "x-a: 2", "Content-Type: text/x", "X-B: \xe9")
    ).json
    expected = {
        "REQUEST_METHOD": "GET", "QUERY_STRING": "a=1&b=%20", "PATH_INFO": "/environ", "SCRIPT_NAME": "",
        "SERVER_PROTOCOL": "HTTP/1.1", "SERVER_NAME": "127.0.0.1", "SERVER_PORT": str(server.port),
        "REMOTE_ADDR": "127.0.0.1", "HTTP_HOST": "x", "HTTP_X_A": "1,2", "HTTP_X_B": "\xe9",
        "CONTENT_TYPE": "text/x", "wsgi.url_scheme": "http", "wsgi.multithread": True,
        "wsgi.multiprocess": False, "wsgi.run_once": False, "wsgi.input_terminated": True,
    }  # fmt: skip
    assert {key: environ.get(key) for key in expected} == expected
    assert "CONTENT_LENGTH" not in environ and "HTTP_CONTENT_TYPE" not in environ
    assert server.request(get("/%C3%A9%20")).headers["x-path"] == b"/\xc3\xa9 ".hex()


def test_forwarding_headers_change_nothing(server):
    spoof = ("SCRIPT_NAME: /evil", "Script-Name: /evil", "PATH_INFO: /evil", "X-Forwarded-Proto: https",
             "X-Forwarded-Ssl: off", "X-Forwarded-Protocol: ssl", "X-Forwarded-For: 6.6.6.6")  # fmt: skip
    environ = server.request(get("/environ", *spoof)).json
    kept = [environ[key] for key in ("SCRIPT_NAME", "PATH_INFO", "wsgi.url_scheme", "REMOTE_ADDR")]
    assert kept == ["", "/environ", "http", "127.0.0.1"]


@pytest.mark.parametrize("length", [0, 1, 8192, 65536, 262_144])
def test_body_arrives_complete(server, length):
    body = random.Random(length).randbytes(length)
    digest = hashlib.sha256(body).hexdigest()
    half = length // 2
    for request in (post("/echo", body), chunked("/echo", *(p for p in (body[:half], body[half:]) if p))):
        assert server.request(request).json == {"length": length, "sha256": digest}


def test_tiny_chunks_with_extensions_and_trailers_arrive_complete(server):
    body = b"0123456789" * 150
    head, _, _ = chunked("/echo").partition(b"\r\n\r\n")
    data = b"".join(b"1;a=b\r\n%c\r\n" % byte for byte in body) + b"0\r\nX-T: 1\r\n\r\n"
    with server.connect(head + b"\r\n\r\n" + data + get("/next")) as sock:
        response = sock.response()
        assert response.json == {"length": 1500, "sha256": hashlib.sha256(body).hexdigest()}
        assert sock.response().json == {"path": "/next"}


@pytest.mark.parametrize("request_", [
    post("/echo", b"x" * 262_145), chunked("/echo", b"x" * 262_145), chunked("/echo", *[b"x" * 4000] * 80)
], ids=["length", "chunk", "chunks"])  # fmt: skip
def test_application_rejects_a_body_over_the_limit(server, request_):
    response = server.request(request_)
    assert (response.status, response.json) == (413, {"read": "too large"})


def test_byte_by_byte_request_is_served(server):
    with server.connect() as sock:
        sock.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in chunked("/echo", b"abc"):
            sock.send(bytes([byte]))
        assert sock.response().json["length"] == 3


def test_pipelined_requests_get_responses_in_order(server):
    requests = b"".join(
        get(f"/{n}") + post("/echo", b"x" * n) + chunked("/echo", b"y" * (n + 1)) for n in range(40)
    )
    for cut in (len(requests), 1000):
        with server.connect(requests[:cut]) as sock:
            time.sleep(0.05)
            sock.send(requests[cut:])
            for n in range(40):
                found = []
                for _ in range(3):
                    response = sock.response()
                    found.append(response.json.get("path", response.json.get("length")))
                assert found == [f"/{n}", n, n + 1]


def test_half_closed_client_gets_its_response(server):
    with server.connect(get("/half")) as sock:
        sock.finish()
        assert sock.response().status == 200


def test_expect_100_continue(server):
    head, _, body = post("/echo", b"x" * 10, "Expect: 100-continue").partition(b"\r\n\r\n")
    with server.connect(head + b"\r\n\r\n") as sock:
        assert sock.read_some() == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.send(body)
        assert sock.response().json["length"] == 10
    large = b"POST /reject HTTP/1.1\r\nHost: x\r\nContent-Length: 9000000\r\nExpect: 100-continue\r\n\r\n"
    for request in (large, large.replace(b"/reject", b"/echo")):
        assert server.request(request).status == 413


def test_early_response_to_a_large_upload_reaches_the_client(server):
    for size in (1_000_000, 10_000_000):
        assert server.request(post("/reject", b"x" * size)).status == 413


def test_unread_large_body_is_never_parsed_as_a_request(server):
    with server.connect(post("/reject", get("/smuggled") * 9000)) as sock:
        assert sock.response().headers["connection"] == "close"
        assert b"HTTP/1.1" not in sock.read_all()


@pytest.mark.parametrize("minor", [2, 9])
def test_later_minor_versions_get_http11_responses(server, minor):
    with server.connect(get("/").replace(b"HTTP/1.1", b"HTTP/1.%d" % minor)) as sock:
        response = sock.response()
        assert (response.version, response.status) == (11, 200)
        assert response.headers["connection"] == "keep-alive"


def test_empty_line_after_a_body_and_silence_get_no_response(server):
    with server.connect(post("/echo", b"abc") + b"\r\n") as sock:
        assert sock.response().json["length"] == 3
        assert sock.read_all() == b""  # until the idle connection is closed
    with server.connect(post("/echo", b"abc") + b"\r\n" + get("/next")) as sock:
        sock.response()
        assert sock.response().json == {"path": "/next"}


def test_an_application_may_change_its_mind_and_is_closed(server):
    response = server.request(get("/change-of-mind"))
    assert (response.status, response.body) == (404, b"none")
    assert server.request(get("/closeable")).body == b"x"
    assert server.request(get("/closed")).json == {"closed": 1}


def test_no_content_has_no_length_and_no_body(server):
    with server.connect(get("/no-content") + get("/next")) as sock:
        response = sock.response()
        assert (response.status, "content-length" in response.headers) == (204, False)
        assert sock.response().json == {"path": "/next"}
