"""One of each kind of request through a real gunicorn; `test_ordinary.py` and `test_malformed.py` have the rest."""

import random
import time

import pytest

from tests.server.app import RAISED
from tests.server.gunicorn_process import LONG_DEADLINES, assert_error_object, chunked, get, post


def test_head_and_body_leave_in_one_packet(server):
    with server.connect(get("/one")) as sock:
        assert b"/one" in sock.read_some().partition(b"\r\n\r\n")[2]


def test_http10_and_connection_close_close_the_connection(start):
    server = start("keepalive = 60", deadlines=LONG_DEADLINES)
    for request in (b"GET / HTTP/1.0\r\n\r\n", get("/", "Connection: close")):
        with server.connect(request) as sock:
            assert sock.response().headers["connection"] == "close"
            sock.read_all()


def test_a_half_closed_client_gets_the_responses_to_requests_of_each_framing_in_order(server):
    body = random.Random(1).randbytes(262_144)
    requests = [
        get("/a"),
        post("/echo", body),
        chunked("/echo", body[:9], body[9:]),
        b"HEAD /b HTTP/1.1\r\nHost: x\r\n\r\n",
    ]
    data = b"".join(requests)
    for cut in (len(data), 1000, len(data) - 30):
        with server.connect(data[:cut]) as sock:
            time.sleep(0.05)
            sock.send(data[cut:])
            sock.finish()
            assert sock.response().json["path"] == "/a"
            assert [sock.response().json["length"] for _ in range(2)] == [len(body)] * 2
            assert sock.response("HEAD").status == 200
            assert sock.is_ended()


def test_expect_100_continue(server):
    head, _, body = post("/echo", b"x" * 10, "Expect: 100-continue").partition(b"\r\n\r\n")
    with server.connect(head + b"\r\n\r\n") as sock:
        assert sock.read_some() == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.send(body)
        assert sock.response().json["length"] == 10


def test_early_response_to_a_large_upload_reaches_the_client(server):
    for size in (1_000_000, 10_000_000):
        assert server.request(post("/reject", b"x" * size)).status == 413


@pytest.mark.parametrize(
    "sent", [b"GARBAGE SECRET\r\n\r\n", post("/echo", b"SECRET")[:-1], chunked("/echo", end=b"SECRET\r\n")]
)
def test_a_malformed_or_incomplete_request_gets_an_error_object(server, sent):
    with server.connect(sent) as sock:
        sock.finish()
        assert_error_object(sock.response())
        assert sock.is_ended()
    assert "SECRET" not in server.log


def test_unexpected_exceptions_are_error_objects_and_end_no_worker(server):
    for path in [*RAISED, "/exit", "/base-exception"]:  # more than there are greenlets
        assert_error_object(server.request(get(path, "X-Request-Id: mine")), 500, "internal_error", "mine")
    assert "SECRET" not in server.log
    server.probe()
