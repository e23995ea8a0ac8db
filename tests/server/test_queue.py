"""Requests that wait for a thread: rejected after a time, whatever the threads are doing."""

import contextlib
import time
from types import SimpleNamespace

from stackmgr.server.worker import Worker
from tests.server.gunicorn_process import chunked, get, post

LIMIT = "import stackmgr.server.worker as w\nw.Worker.queue_seconds = 0.5\n"


@contextlib.contextmanager
def busy(server, seconds):
    """Occupy both threads."""
    with server.connect(get(f"/sleep?{seconds}")) as one, server.connect(get(f"/sleep?{seconds}")) as two:
        time.sleep(0.3)
        yield
        assert [one.response().status, two.response().status] == [200, 200]


def test_request_that_no_thread_takes_in_time_is_rejected(start):
    server = start(LIMIT)
    with server.connect(get("/")) as kept, busy(server, 2.5):
        assert kept.response().status == 200
        kept.send(get("/late"))
        with server.connect(get("/new")) as new:  # accepted, though no thread is free
            for client in (kept, new):
                response = client.response()
                assert (response.status, response.headers["Retry-After"]) == (503, "1")
                assert response.headers["Connection"] == "keep-alive"
    assert server.ask(get("/")).status == 200
    assert "Responded 503 on " in server.log


def test_rejected_connection_stays_usable_after_any_body(start):
    server = start(LIMIT)
    with server.connect() as client:
        with busy(server, 2):
            client.send(post("/echo", b"x" * 1000), chunked("/echo", b"y" * 1000), get("/"))
            assert [client.response().status for _ in range(3)] == [503] * 3
        client.send(get("/after"))
        assert client.response().json == {"path": "/after"}


def test_rejected_head_request_has_no_body(start):
    server = start(LIMIT)
    with busy(server, 2), server.connect(b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n" + get("/")) as client:
        assert client.response("HEAD").status == 503
        assert client.response().body == b"overloaded"


def test_request_that_waits_less_than_the_limit_is_served(start):
    server = start(LIMIT.replace("0.5", "2.0"))
    with busy(server, 1), server.connect(get("/waited")) as client:
        assert client.response().status == 200


def test_requests_of_the_exempt_listener_wait(start):
    server = start(LIMIT + "w.Worker.exempt_port = str(bind[1].rpartition(':')[2])", binds=2)
    with busy(server, 2), server.connect(get("/live"), server.ports[1]) as client:
        assert client.response().status == 200


def test_partial_request_is_not_rejected_but_has_its_deadline(start):
    server = start(LIMIT)
    with busy(server, 2.5), server.connect(b"GET / HT") as client:
        assert client.response().status == 400


def test_unread_response_is_not_rejected(start):
    server = start(LIMIT)
    with server.connect_without_reading(get("/big?9000000")) as client:
        time.sleep(0.3)
        with busy(server, 2):
            time.sleep(0.2)
            assert client.read_some().startswith(b"HTTP/1.1 200")


def test_a_connection_that_was_served_since_the_poll_has_not_waited():
    worker = Worker.__new__(Worker)
    worker.queue_seconds, worker.exempt_port = 1.0, ""
    conn = SimpleNamespace(ready_since=0.0, phase="idle", environ={"SERVER_PORT": "8000"})
    assert not worker._has_waited(conn, 100.0)
    conn.ready_since = 98.5
    assert worker._has_waited(conn, 100.0)
