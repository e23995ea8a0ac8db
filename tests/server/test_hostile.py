"""Hostile or broken clients: slow, silent and greedy ones."""

import contextlib
import select
import time

from tests.server.gunicorn_process import LONG_DEADLINES, chunked, count_connections, get, post
from tests.support.waiting import eventually


def test_connections_that_are_silent_or_do_not_read_cost_no_greenlet(start):
    server = start("keepalive = 60", deadlines=LONG_DEADLINES)
    half_body = post("/echo", b"x" * 200_000)[:100_000]
    kinds = [(b"", 300), (b"G", 60), (half_body, 60), (chunked("/echo", b"x", end=b"5\r\nab"), 60),
             (get("/", "Connection: close"), 60)]  # fmt: skip
    socks = [server.connect(data) for data, count in kinds for _ in range(count)]
    unread = [server.connect_without_reading(get("/big?5000000")) for _ in range(6)]
    for sock in unread:
        assert select.select([sock.socket], [], [], 20)[0]
    socks += unread
    server.probe(20)
    for sock in socks:
        sock.close()


def test_out_of_descriptors_accepts_again_as_soon_as_a_connection_closes(start):
    server = start(
        "import resource, stackmgr.server.loop as w\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (48, 48))\nw.LOOK_SECONDS = 10"
    )
    with contextlib.ExitStack() as stack:
        for _ in range(80):
            stack.enter_context(server.connect())
        server.probe()


def test_unfinished_requests_have_a_total_budget(start):
    server = start(
        "import stackmgr.server.clients as c\nc.BUFFER_BUDGET = 5_000_000", deadlines=LONG_DEADLINES
    )
    body = b"x" * 262_144
    socks = [server.connect(post("/echo", body)[:-1]) for _ in range(60)]
    eventually(lambda: count_connections(server.port) <= 20)
    socks[-1].send(b"x")
    assert socks[-1].response().json["length"] == len(body)
    for sock in socks:
        sock.close()


def test_a_slow_but_steady_reader_is_not_cut_off(server):
    sock = server.connect_without_reading(get("/big?9000000"))
    sock.socket.settimeout(5)
    data = bytearray()
    end = time.monotonic() + 4  # more than twice the write deadline
    while time.monotonic() < end:
        for _ in range(40):  # of about 2 kB
            data += sock.read_some()
        time.sleep(0.1)
    assert len(data) < 9_000_000
    assert len(data) + len(sock.read_all()) > 9_000_000
    sock.close()


def test_idle_connections_are_closed_after_keepalive(server):
    start = time.monotonic()
    with server.connect(get("/")) as sock:
        sock.response()
        sock.read_all()
        assert time.monotonic() - start > 2.9
