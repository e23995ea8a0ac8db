"""Hostile clients of a real gunicorn; `test_clients.py` has what needs no process."""

import socket

from tests.server.app import RAISED
from tests.server.gunicorn_process import assert_error_object, chunked, get, post


def test_silent_connections_cost_no_greenlet(start):
    server = start("keepalive = 60")
    half_body = post("/echo", b"x" * 200_000)[:100_000]
    kinds = [(b"", 300), (b"G", 60), (half_body, 60), (chunked("/echo", b"x", end=b"5\r\nab"), 60),
             (get("/", "Connection: close"), 60)]  # fmt: skip
    socks = [server.connect(data) for data, count in kinds for _ in range(count)]
    unread = [server.connect_without_reading(get("/big?5000000")) for _ in range(6)]
    for sock in unread:
        assert sock.socket.recv(1, socket.MSG_PEEK)
    socks += unread
    server.probe(20)
    for sock in socks:
        sock.close()


def test_head_and_body_leave_in_one_packet(start):
    with start().connect(get("/one")) as sock:
        assert b"/one" in sock.read_some().partition(b"\r\n\r\n")[2]


def test_an_early_response_arrives(start):
    assert start().request(post("/reject", b"x" * 10_000_000)).status == 413


def test_unexpected_exceptions_end_no_worker(start):
    server = start()
    for path in [*RAISED, "/exit", "/base-exception"]:  # more than there are greenlets
        assert_error_object(server.request(get(path, "X-Request-Id: mine")), 500, "internal_error", "mine")
    assert (server.boots, "SECRET" in server.log, "Traceback" in server.log) == (1, False, False)
    server.probe()
