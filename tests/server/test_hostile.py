"""Hostile clients of a real gunicorn; `test_clients.py` has what needs no process."""

from contextlib import suppress

import psutil

from tests.server.gunicorn_process import chunked, get, post
from tests.support import http_wire


def test_head_and_body_leave_in_one_packet(start):
    with start().connect(get("/one")) as sock:
        assert b"/one" in sock.read_some().partition(b"\r\n\r\n")[2]


def test_an_early_response_arrives(start):
    assert start().request(post("/reject", b"x" * 10_000_000)).status == 413


LONG_ID = "X-Request-Id: " + "\xff" * 16_300  # which an Error object repeats as 98 kB
CROWD = [
    b"G", get("/", LONG_ID)[:-1], post("/echo", b"x" * 200_000)[:60_000], chunked("/echo", b"x" * 60_000, end=b"5"),
    b"BAD\r\n" + LONG_ID.encode("latin-1") + b"\r\n\r\n", get("/big?5000000"), get("/", LONG_ID, "Connection: close"),
]  # fmt: skip


def test_a_crowd_holds_what_the_budget_allows(start):
    server = start(
        "worker_connections, keepalive, limit_request_field_size = 100, 60, 16384\nimport stackmgr.server.clients as c\nc.BUFFER_BUDGET = 4_000_000"
    )
    [worker] = psutil.Process(server.process.pid).children()
    server.probe()
    before, socks = worker.memory_info().rss, []
    for data in CROWD * 20:
        socks.append(http_wire.connect(server.port, receive_buffer=4096))
        with suppress(ConnectionError):  # closed to make room for others
            socks[-1].send(data)
    server.probe()
    assert worker.num_fds() < 130
    assert worker.memory_info().rss - before < 40_000_000
    for sock in socks:
        sock.close()
