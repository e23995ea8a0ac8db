"""The turns of a worker: what comes first and for how long, what is rejected, its listeners and its stop."""

import errno
import socket
from itertools import pairwise
from unittest.mock import Mock, call, patch

import pytest

from stackmgr.server import clients
from stackmgr.server import worker as turns
from stackmgr.server.clients import Clients
from tests.server.gunicorn_process import chunked, get, post
from tests.server.memory_server import OK, OPERATOR, OTHER, UNIX, occupy, one_step_a_turn, release, start_of


@pytest.mark.parametrize("is_overdue", [False, True])
def test_a_turn_starts_and_rejects_for_a_bounded_time(worker, is_overdue):
    wsgi = worker.wsgi

    def slow(*call):
        worker.now += 2 * turns.REJECT_SECONDS
        return wsgi(*call)

    worker.wsgi, worker.queue._seconds = slow, 1.0
    occupy(worker)
    for _ in range(4):
        worker.connected(get("/"))
    worker.queue._free = not is_overdue
    worker.now += is_overdue
    for served in range(1, 5):
        worker.take_turns()
        assert worker.nr == served


def test_operators_do_not_queue_and_have_a_limit_of_their_own(make, monkeypatch):
    monkeypatch.setattr(turns, "ADMIN_CONNECTIONS", 2)
    largest = dict.fromkeys(("limit_request_line", "limit_request_fields", "limit_request_field_size"), 0)
    occupy(worker := make(**largest))
    waiting = worker.connected(get("/"))
    found = [worker.connected(get("/live"), to=to) for to in (OPERATOR, OTHER, OPERATOR)]
    assert [each.response().status for each in found] == [200] * 3
    assert [each.is_ended() for each in found] == [True, False, False]
    release(worker)
    assert start_of(waiting) == OK


def test_a_worker_without_a_master_stops(worker):
    worker.ppid = 1 << 30
    worker.pass_time(1.0)
    assert not worker.alive
    assert not worker.turn()


@pytest.mark.parametrize("to", [0, OPERATOR])
def test_a_stop_waits_for_no_idle_connection(make, to):
    worker = make(keepalive=60)
    idle, late, part = (worker.connected(data, to=to) for data in (b"", get("/"), b""))
    late.read_all()
    waiting, silent = (socket.create_connection(worker.sockets[to].getsockname(), 5) for _ in range(2))
    waiting.send(get("/"))
    worker.alive = False
    worker.settle()
    assert waiting.recv(12) == OK  # which no turn had accepted
    waiting.close()
    worker.pass_time(1.9)
    assert worker.turn()
    part.send(b"G")
    late.send(get("/"))
    assert b"Connection: close" in late.read_all()
    late.close()
    worker.pass_time(0.2)
    assert not idle.is_ended()
    assert worker.turn()
    part.send(get("/")[1:])
    assert start_of(part) == OK
    part.close()
    assert not worker.turn()  # which ends the idle ones with the process
    silent.close()


def test_a_stop_accepts_in_turns(make):
    worker = make(worker_connections=100)
    pending = [socket.create_connection(worker.sockets[0].getsockname()) for _ in range(3 * clients.ACCEPTS)]
    worker.alive, found = False, [0]
    assert worker.turn()
    for _ in range(30):
        worker.take_turns()
        worker.now += clients.SHARE_SECONDS / 2
        found.append(worker.open)
    assert max(after - before for before, after in pairwise(found)) == clients.ACCEPTS
    assert (found[-1], worker.managers._listeners) == (len(pending), [])
    for each in pending:
        each.close()


def test_a_stop_serves_what_is_ready(worker, monkeypatch):
    one_step_a_turn(monkeypatch)
    found = [worker.connected(get("/")) for _ in range(3)]
    worker.alive = False
    worker.settle()
    worker.pass_time(turns.STOP_LINGER + 0.1)
    found[0].socket.close()  # which is all that the next turn has time for
    for each in found[1:]:
        each.socket.send(get("/"))
    note_events(worker)
    assert worker.turn()
    worker.settle()
    assert worker.nr == 5


def note_events(worker):
    worker.scheduler.run(iter([True, False]).__next__, lambda: 0.0)


def test_shared_round_trips_wait_for_known_keys(worker):
    for is_known in (False, True):
        occupy(worker)
        found = worker.connected(get("/change-of-mind", "Authorization: Bearer a-1"))  # 404
        assert not worker.is_busy()
        worker.queue._free = 1
        assert worker.is_busy() == is_known
        worker.settle()
    found.socket.send(get("/"))
    note_events(worker)
    assert worker.is_busy()


@pytest.fixture
def served(worker):
    """The paths of requests in the order in which they are served, each in half a millisecond."""
    served, wsgi = [], worker.wsgi

    def slow(environ, start):
        worker.now += 0.0005
        served.append(environ["PATH_INFO"])
        return wsgi(environ, start)

    worker.wsgi = slow
    return served


def test_managers_that_send_at_once_take_turns(worker, served):
    found = [(worker.connected(get("/", f"Authorization: {key}")), key) for key in "aaab"]
    served.clear()
    for each, key in found:
        each.socket.send(get(f"/{key}", f"Authorization: {key}"))
    worker.settle()
    assert served == ["/a", "/b", "/a", "/a"]


def test_accepted_keys_and_operators_come_before_strangers(worker, monkeypatch, served):
    monkeypatch.setattr(turns, "STRANGER_SECONDS", -1.0)
    known, *strangers = worker.connected(get("/")), *[worker.connected() for _ in range(4)]
    operator = worker.connected(to=OPERATOR)
    for each in strangers:
        each.socket.send(get("/unauthorized") * 2)
    operator.socket.send(get("/live"))
    known.socket.send(get("/known"))
    worker.take_turns(2)
    assert served == ["/", "/live", "/known"]
    for number in range(1, 7):
        worker.take_turns()
        assert served[3:] == ["/unauthorized"] * number
    worker.settle()
    assert len(served) == 11


def test_a_write_counts_as_one(worker):
    found, wsgi = [], worker.wsgi
    worker.wsgi = lambda *call: found.append(worker.queue._writing) or wsgi(*call)
    for method in (b"GET", b"HEAD", b"POST", b"PATCH"):
        worker.connected(get("/").replace(b"GET", method))
    assert found == [0, 0, 1, 1]


def failing_accept(works, failure, lacks):
    def accepted(self, listener):
        if lacks:
            lacks.append(True)
            raise OSError(getattr(errno, failure), "no")
        yield from works(self, listener)

    return accepted


@pytest.mark.parametrize("failure", ["EMFILE", "EBADF"])
def test_listeners_recover_from_errors(make, monkeypatch, failure):
    lacks = [True]
    monkeypatch.setattr(Clients, "_accepted", failing_accept(Clients._accepted, failure, lacks))
    worker = make()
    found = [worker.connected(get("/"), to=each) for each in (OPERATOR, 0, UNIX)]
    tried = len(lacks)
    worker.take_turns(9)
    assert (worker.open, len(lacks)) == (0, tried)  # an immediate retry would only use the processor
    lacks.clear()
    worker.pass_time(1.0)
    assert [start_of(each) for each in found] == [OK] * 3


@pytest.mark.parametrize("failure", ["EMFILE", "ENFILE", "ENOBUFS", "ENOMEM", "EBADF"])
@pytest.mark.parametrize("to", [0, OPERATOR])
def test_managers_make_room(worker, monkeypatch, failure, to):
    expendable, is_given_up = worker.connected(), failure != "EBADF"
    lacks = [True]
    works = failing_accept(Clients._accepted, failure, lacks)

    def accepted(self, listener):
        if not worker.managers.open:
            lacks.clear()
        return works(self, listener)

    monkeypatch.setattr(Clients, "_accepted", accepted)
    found = worker.connected(get("/live"), to=to)
    assert start_of(found) == (OK if is_given_up else b"")
    assert expendable.is_ended() == is_given_up


@pytest.mark.parametrize("failure", [
    "ECONNABORTED", "EHOSTDOWN", "EHOSTUNREACH", "ENETDOWN", "ENETUNREACH", "ENONET", "ENOPROTOOPT", "EOPNOTSUPP",
    "EPERM", "EPROTO",
])  # fmt: skip
@pytest.mark.parametrize("is_alive", [True, False])
def test_a_failed_accept_delays_no_other(worker, monkeypatch, failure, is_alive):
    accept, errors = socket.socket.accept, iter(range(3))

    def failing(listener):
        if next(errors, None) is not None:
            raise OSError(getattr(errno, failure), "of this connection")
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", failing)
    waiting = socket.create_connection(worker.sockets[0].getsockname(), 5)
    waiting.send(get("/"))
    worker.alive = is_alive
    worker.settle()
    assert waiting.recv(12) == OK
    waiting.close()


@pytest.mark.parametrize(("workers", "shared"), [(1, [4, 4, 4, 4]), (2, [1, 2, 4, 4])])
def test_workers_share_waiting_connections(make, monkeypatch, workers, shared):
    monkeypatch.setattr(clients, "SHARED_BELOW", 3)
    worker = make(workers=workers)

    def accepted():
        found = [socket.create_connection(worker.sockets[0].getsockname()) for _ in range(4)]
        for _ in found:
            worker.settle()
            yield worker.open
            worker.pass_time(clients.SHARE_SECONDS)
        for each in found:
            each.close()
        worker.settle()

    assert list(accepted()) == shared
    assert list(accepted()) == [4] * 4  # as many were open before
    worker.pass_time(1)
    assert list(accepted()) == shared


def test_connections_take_turns(worker, monkeypatch, served):
    one_step_a_turn(monkeypatch)
    found = [worker.connected(get("/")) for _ in range(3)]
    served.clear()
    for number, each in enumerate(found):
        each.socket.send(get(f"/{number}") * 3)
    worker.settle()
    assert sorted(served[:3]) == sorted(served[3:6]) == sorted(served[6:]) == ["/0", "/1", "/2"]


def test_bodies_come_after_heads(worker, monkeypatch):
    one_step_a_turn(monkeypatch)  # and one of a body
    discarded = worker.connected(get("/", "Connection: close"))
    discarded.socket.send(b"x")
    note_events(worker)
    assert (len(worker.heads), len(worker.bodies)) == (0, 1)
    attackers, found = [worker.connected() for _ in range(6)], worker.connected()
    for attacker in attackers[:3]:
        attacker.socket.sendall(chunked("/echo", *[b"x"] * 3000, end=b""))
    for attacker in attackers[3:]:
        attacker.socket.send(post("/echo", b"x" * 200_000)[:150_000])
    worker.take_turns(8)
    assert len(worker.bodies) > 3
    found.socket.send(get("/a"))
    worker.take_turns(3)
    assert found.socket.recv(12) == OK
    for attacker, rest in zip(attackers, [b"0\r\n\r\n"] * 3 + [b"x" * 200_000] * 3, strict=True):
        attacker.send(rest)
    assert [start_of(attacker) for attacker in attackers] == [OK] * 6


def test_a_full_collection_waits_for_the_end_of_a_flood(worker, monkeypatch):
    gc, libc = Mock(get_threshold=lambda: (700, 10, 10)), Mock()
    gc.get_count.return_value = 0, 0, 3
    for name, value in (("gc", gc), ("CDLL", lambda _: libc), ("COLLECTED_CLIENTS", 1)):
        monkeypatch.setattr(turns, name, value)
    with patch.object(worker.scheduler, "run") as run:
        worker.run()
    run.assert_called_once_with(worker.turn, worker.idle_seconds, worker.is_busy)
    gc.freeze.assert_called_once_with()
    assert libc.mallopt.mock_calls == [call(-1, 2**31 - 1), call(-3, 2**25)]
    gc.set_threshold.assert_called_once_with(700, 10, 2**31 - 1)  # no other full collection
    found = [worker.connected() for _ in range(2)]
    gc.collect.reset_mock()
    worker.pass_time(1)
    gc.collect.assert_not_called()
    found[0].close()
    worker.pass_time(1)
    gc.collect.assert_called()
    gc.get_count.return_value = 0, 0, 2
    gc.collect.reset_mock()
    worker.pass_time(1)
    gc.collect.assert_not_called()
