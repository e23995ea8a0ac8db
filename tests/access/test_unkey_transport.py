"""Network failures towards Unkey: nothing is granted, nothing changes, no request waits for long."""

import socket
import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from unittest.mock import Mock
from uuid import uuid4

import pytest

from stackmgr.access.verifiers import circuit_breaker, http_connection, remote
from stackmgr.database import statements
from stackmgr.errors import ServiceUnavailable
from stackmgr.scheduler import READABLE, WRITABLE
from tests.support.http_server import drip, hang_up, http_server, reset, respond, response
from tests.support.memory import types_in_cycles
from tests.support.recorder import opened
from tests.support.unkey_server import accepted
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("circuit_stays_closed")
EXTERNAL = str(uuid4())
GOOD = response(200, accepted(EXTERNAL))
HEAD = b"HTTP/1.1 200 OK\r\n"
FIND = statements.load("manager_find")
# Shorter than any of the drips and silences below, long enough for an exchange on loopback.
IMPATIENT = 0.3
SLOW = {
    "each byte of the headers": drip(GOOD, 0.05),
    "each byte of the body": drip(HEAD + b"\r\n" + b" " * 100, 0.02),
    "endless continue, slowly": drip(b"HTTP/1.1 100 Continue\r\n\r\n" * 100, 0.02),
}


@pytest.mark.parametrize("behaviour", [*SLOW.values(), None], ids=[*SLOW, "silence"])
def test_a_slow_response_is_unavailable_at_the_deadline(
    every_operation, known, unkey, make_unkey_client, behaviour
):
    unkey.behave = behaviour or unkey.silence
    every_operation(503, make_unkey_client(unkey.url, IMPATIENT, known[0].external_id))
    eventually(lambda: len(unkey.requests) >= 4)  # the last may arrive after it was given up
    assert len(unkey.requests) == 4


@pytest.mark.parametrize(("url", "is_listening"), [
    ("http://127.0.0.1:{port}", False), ("http://127.0.0.1:{port}", True), ("https://127.0.0.1:{port}", True),
    ("http://no-such-host.invalid", False), ("http://a..b", False), ("http://" + "x" * 70, False),
], ids=["closed port", "never reads", "handshake", "unknown name", "empty label", "long label"])  # fmt: skip
def test_server_that_cannot_be_reached_is_unavailable(every_operation, make_unkey_client, url, is_listening):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        if is_listening:
            listener.listen(16)
        every_operation(503, make_unkey_client(url.format(port=listener.getsockname()[1]), IMPATIENT))


@pytest.mark.parametrize(("scheme", "port"), [("http", 80), ("https", 443)])
def test_hanging_resolver_delays_no_request(every_operation, make_unkey_client, monkeypatch, scheme, port):
    release, lookups = threading.Event(), []

    def hang(*arguments, **options):
        lookups.append(arguments)
        release.wait(10)
        raise socket.gaierror

    with monkeypatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", hang)
        every_operation(503, make_unkey_client(f"{scheme}://unkey.example.org", 0.1))
        release.set()
    assert [arguments[:2] for arguments in lookups] == [("unkey.example.org", port)]


@pytest.fixture
def resolve(monkeypatch):
    """Return a function that has every name resolved to this host, with the ports that a function returns."""
    tcp = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "")

    def resolve(ports):
        monkeypatch.setattr(
            socket, "getaddrinfo", lambda *_, **__: [(*tcp, ("127.0.0.1", port)) for port in ports()]
        )

    return resolve


def test_dead_address_leaves_time_for_the_next(unkey, make_unkey_client, resolve):
    client = make_unkey_client(f"http://unkey.example.org:{unkey.port}/own/", 2.0)
    unkey.behave = respond(200, accepted(client.external_id, client.external_id))
    with ExitStack() as cleanup:
        full = cleanup.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(3):
            waiting = cleanup.enter_context(socket.socket())
            waiting.settimeout(0)
            waiting.connect_ex(full.getsockname())
        resolve(lambda: (1, full.getsockname()[1], 1, unkey.port))
        assert client.page().status_int == 200
    assert unkey.requests[-1].line == "POST /own/v2/keys.verifyKey HTTP/1.1"


def test_probes_look_the_name_up_anew(make_unkey_client, resolve, monkeypatch):
    monkeypatch.setattr(circuit_breaker, "FAILURES_TO_OPEN", 3)
    all_arrived = threading.Barrier(5)
    with http_server() as failing, http_server() as healthy, ThreadPoolExecutor(5) as threads:
        client = make_unkey_client("http://unkey.example.org")
        good = respond(200, accepted(client.external_id, client.external_id))
        failing.behave = lambda sock, request: all_arrived.wait(10) < 5 and good(sock, request)
        resolve(lambda: (failing.port,))
        assert {*threads.map(lambda _: client.page().status_int, range(5))} == {200}
        failing.behave, healthy.behave = respond(503, {}), good
        resolve(lambda: (healthy.port,))
        assert [client.page().status_int for _ in range(3)] == [503] * 3
        eventually(lambda: client.page().status_int == 200)
        assert client.page().status_int == 200  # not by a connection to the other
    assert (failing.connections, len(failing.requests), healthy.connections) == (5, 5 + 3, 1)


def test_a_host_may_end_with_a_dot(tls_server, make_unkey_client, resolve):
    with tls_server("unkey.example.org") as server:
        client = make_unkey_client(f"https://unkey.example.org.:{server.port}")
        server.behave = respond(200, accepted(client.external_id, client.external_id))
        resolve(lambda: (server.port,))
        assert client.page().status_int == 200


@pytest.mark.parametrize(("name", "trusted"), [("unkey.example.org", True), ("127.0.0.1", False)])
def test_a_failed_connection_has_its_reason(tls_server, make_verifier, monkeypatch, name, trusted):
    with tls_server(name, is_trusted=trusted) as server:
        places = {server.url: "tls", "http://127.0.0.1:1": "connect", "http://a..b": "dns"}
        for url, reason in places.items():
            with pytest.raises(ServiceUnavailable, match=f"^verifier_{reason}$"):
                make_verifier(url).verify("key")
        assert server.requests == []
    monkeypatch.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("no more threads")))
    with pytest.raises(ServiceUnavailable, match="verifier_dns"):
        make_verifier("http://127.0.0.1").verify("key")


def test_a_request_is_sent_at_once_and_completely(unkey, make_endpoint, monkeypatch):
    unkey.behave, endpoint, body = respond(200, {}), make_endpoint(unkey.url), b"x" * 10_000_000
    assert endpoint.post("/", credential="c", media_type="m", body=body) == {}
    assert unkey.requests[0].body == body
    [connection] = endpoint._idle
    assert connection._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    waits, needs = [], [BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError, "done"]
    monkeypatch.setattr(http_connection, "wait_for", lambda _, events, __: waits.append(events))
    assert connection._finished(-1, Mock(side_effect=needs)) == "done"
    assert waits == [-1, READABLE, WRITABLE]


@pytest.mark.parametrize("death", [hang_up, reset])
def test_dead_kept_connection_is_replaced_once(known, unkey, death):
    client, stack_id = known
    good = unkey.behave

    def dies_if_kept(sock, request):
        return good(sock, request) if request.number_on_connection == 1 else death(sock, request)

    unkey.behave = dies_if_kept
    assert client.get(stack_id).status_int == 200
    assert unkey.requests[0].body == unkey.requests[1].body


def test_old_connection_is_not_used_again(known, unkey, monkeypatch):
    client, stack_id = known
    connections = unkey.connections
    for seconds, more in ((20, 0), (30, 1)):  # by then a middlebox may have dropped it
        for module in (http_connection, remote):
            monkeypatch.setattr(module, "monotonic", lambda: time.monotonic() + seconds)  # noqa: B023
        assert client.get(stack_id).status_int == 200
        assert unkey.connections == connections + more


def test_unkey_call_takes_no_connection_and_none_of_its_time(unkey, database_url, client_with, make_verifier):
    called = threading.Event()

    def respond_late(sock, request):
        called.set()
        unkey.release.wait(10)
        return respond(200, accepted(EXTERNAL, EXTERNAL))(sock, request)

    unkey.behave = respond_late
    with opened(database_url, pool_size=1, deadline=1.0) as database, ThreadPoolExecutor(1) as thread:
        database._pool.wait(30)
        client = client_with("key", database=database, verifier=make_verifier(unkey.url))
        pending = thread.submit(client.page)
        assert called.wait(10)
        session = database.session()
        session.rows(FIND, {"external_id": EXTERNAL, "identity_id": EXTERNAL})
        time.sleep(1.1)
        unkey.release.set()
        assert pending.result().status_int == 200


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "http://nobody.invalid", "https://localhost:9", None])
def test_a_failure_leaves_no_cycle(unkey, make_unkey_client, url):
    client = make_unkey_client(url or unkey.url, IMPATIENT)
    unkey.behave = unkey.silence
    assert types_in_cycles(client.page) == {}
