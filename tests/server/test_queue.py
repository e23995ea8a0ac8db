"""Requests that wait for a greenlet: rejected after a time, whatever the greenlets are doing."""

import contextlib
import itertools
import re
import select
import socket
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from stackmgr.server.loop import RETRY_SPREAD_SECONDS
from tests.server.gunicorn_process import chunked, get, post
from tests.support.waiting import eventually

LIMIT = "\nimport stackmgr.server.worker as w\nw.Worker.queue_seconds = 0.5\n"


@contextlib.contextmanager
def busy(server):
    """Occupy both greenlets until the context ends."""
    with tempfile.TemporaryDirectory() as name:
        folder, request = Path(name), get(f"/hold?{name}")
        with server.connect(request) as one, server.connect(request) as two:
            eventually(lambda: len(list(folder.iterdir())) == 2)
            try:
                yield
            finally:
                (folder / "end").touch()
            assert [one.response().status, two.response().status] == [200, 200]


def test_one_manager_never_has_all_the_greenlets(start, tmp_path):
    server, folder = start("threads = 4"), tmp_path / "held"
    folder.mkdir()
    spellings = ["Bearer a-1", "bearer a-1", "BEARER a-2", "Bearer  a-2", "Bearer   a-3", "Bearer a-3 "]
    requests = [get(f"/hold?{folder}", f"Authorization: {spelling}") for spelling in spellings]
    for spelling in spellings:
        assert server.request(get("/", f"Authorization: {spelling}")).status == 200
    with ExitStack() as stack:
        clients = [stack.enter_context(server.connect(request)) for request in requests]
        eventually(lambda: len(list(folder.iterdir())) == 3)
        assert server.request(get("/", "Authorization: Bearer b")).status == 200
        assert len(list(folder.iterdir())) == 3
        (folder / "end").touch()
        assert [client.response().status for client in clients] == [200] * 6


def test_keys_that_are_rejected_slowly_leave_greenlets_for_one_that_is_accepted(start):
    server = start("threads = 4" + LIMIT)
    good = get("/", "Authorization: Bearer good")
    assert server.request(good).status == 200
    numbers, has_ended = itertools.count(), threading.Event()
    found = Counter()

    def attack():
        with server.connect() as client:
            while not has_ended.is_set():
                client.send(get("/slowly-rejected?0.3", f"Authorization: Bearer {next(numbers)}"))
                found[client.response().status] += 1

    attackers = [threading.Thread(target=attack) for _ in range(32)]
    for attacker in attackers:
        attacker.start()
    try:
        time.sleep(1)
        assert [server.request(good).status for _ in range(20)] == [200] * 20
    finally:
        has_ended.set()
        for attacker in attackers:
            attacker.join()
    assert set(found) == {401, 503}


def test_a_key_that_is_rejected_loses_its_share(start):
    server = start("threads = 4" + LIMIT)
    key = "Authorization: Bearer a"
    assert server.request(get("/", key)).status == 200
    assert server.request(get("/slowly-rejected?0", key)).status == 401
    with ExitStack() as stack:
        requests = [get("/slowly-rejected?2", key)] * 2
        clients = [stack.enter_context(server.connect(request)) for request in requests]
        assert sorted(client.response().status for client in clients) == [401, 503]


def test_too_many_requests_that_wait_are_rejected_at_once(start):
    server = start("import stackmgr.server.queue as q\nq.LIMIT = 8\n" + LIMIT.replace("0.5", "20.0"))
    with ExitStack() as stack:
        with busy(server):
            clients = [stack.enter_context(server.connect(get("/"))) for _ in range(8)]
            other = stack.enter_context(server.connect(get("/", "Authorization: Bearer b")))
            readable = select.select([each.socket for each in clients], [], [], 10)[0]
            [rejected] = [each for each in clients if each.socket in readable]  # of the longest line
            assert rejected.response().status == 503
            assert not select.select([each.socket for each in (other, *clients)], [], [], 0.5)[0]
        clients.remove(rejected)
        assert [each.response().status for each in (other, *clients)] == [200] * 8


def test_one_manager_never_has_all_the_greenlets_on_a_unix_socket(start, tmp_path):
    path, folder = str(tmp_path / "socket"), tmp_path / "held"
    folder.mkdir()
    server = start(f"threads = 4\nbind.append('unix:{path}')")

    def connect(request: bytes) -> socket.socket:
        client = stack.enter_context(socket.socket(socket.AF_UNIX))
        client.settimeout(20)
        client.connect(path)
        client.sendall(request)
        return client

    with ExitStack() as stack:
        clients = [connect(get(f"/hold?{folder}", "Authorization: Bearer a")) for _ in range(6)]
        eventually(lambda: len(list(folder.iterdir())) >= 3)
        assert connect(get("/", "Authorization: Bearer b")).recv(12) == b"HTTP/1.1 200"
        assert len(list(folder.iterdir())) == 3
        (folder / "end").touch()
        assert {client.recv(12) for client in clients} == {b"HTTP/1.1 200"}
    assert server.stop() == 0


def wait_for_a_rejection(server):
    """Return once a request has waited too long for a greenlet."""
    assert server.request(get("/rejected")).status == 503


def test_request_that_no_greenlet_takes_in_time_is_rejected(start):
    server = start(LIMIT)
    with server.connect(get("/")) as kept:
        assert kept.response().status == 200
        with busy(server), server.connect(get("/new")) as new:  # accepted, though no greenlet is free
            kept.send(get("/late"))
            for client in (kept, new):
                response = client.response()
                assert response.status == 503
                assert 1 <= int(response.headers["Retry-After"]) <= 1 + RETRY_SPREAD_SECONDS
                assert response.headers["Connection"] == "keep-alive"
    assert server.request(get("/")).status == 200


def logged_rejections(server):
    """Return how many rejected requests the log states in all."""
    return sum(map(int, re.findall(r"\[WARNING\] Responded 503 to .*; requests: (\d+)", server.log)))


def test_requests_rejected_together_are_logged_once_with_different_times_to_retry(start):
    server = start(LIMIT)
    with busy(server), ExitStack() as stack:
        clients = [stack.enter_context(server.connect(get("/"))) for _ in range(64)]
        sent = {client.response().headers["Retry-After"] for client in clients}
        assert sent == {str(1 + more) for more in range(RETRY_SPREAD_SECONDS + 1)}
        eventually(lambda: logged_rejections(server) == 64)
        wait_for_a_rejection(server)
        eventually(lambda: logged_rejections(server) != 64)
    assert logged_rejections(server) == 65


def test_rejected_connection_stays_usable_after_any_body(start):
    server = start(LIMIT)
    with server.connect() as client:
        with busy(server):
            client.send(post("/echo", b"x" * 1000), chunked("/echo", b"y" * 1000), get("/"))
            assert [client.response().status for _ in range(3)] == [503] * 3
        client.send(get("/after"))
        assert client.response().json == {"path": "/after"}


def test_rejected_head_request_has_no_body(start):
    server = start(LIMIT)
    with busy(server), server.connect(b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n" + get("/")) as client:
        assert client.response("HEAD").status == 503
        assert client.response().body == b"overloaded"


def test_request_that_waits_less_than_the_limit_is_served(start):
    server = start(LIMIT.replace("0.5", "20.0"))
    with contextlib.ExitStack() as stack:
        with busy(server):
            client = stack.enter_context(server.connect(get("/waited")))
            time.sleep(0.3)  # longer than the worker takes to look at the queue
        assert client.response().status == 200


def test_requests_of_the_operators_listener_are_served_while_every_greenlet_is_busy(start):
    server = start(LIMIT + "w.Worker.admin_port = int(bind[1].rpartition(':')[2])", binds=2)
    with busy(server), contextlib.ExitStack() as stack:
        wait_for_a_rejection(server)
        clients = [stack.enter_context(server.connect(get("/live"), server.ports[1])) for _ in range(20)]
        assert [client.response().status for client in clients] == [200] * 20


def test_partial_request_is_not_rejected_but_has_its_deadline(start):
    server = start(LIMIT)
    with busy(server), server.connect(b"GET / HT") as client:
        assert client.response().status == 400


def test_unread_response_is_not_rejected(start):
    server = start(LIMIT)
    with server.connect_without_reading(get("/big?9000000")) as client:
        time.sleep(0.3)
        with busy(server):
            wait_for_a_rejection(server)
            assert client.read_some().startswith(b"HTTP/1.1 200")
