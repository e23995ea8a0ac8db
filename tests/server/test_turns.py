"""The turns of a worker: what comes first and for how long, what is rejected, its listeners and its stop."""

import socket
from errno import EBADF, ECONNABORTED, EMFILE, ENETDOWN
from itertools import pairwise
from types import SimpleNamespace

import pytest

from stackmgr.server import clients
from stackmgr.server import worker as turns
from stackmgr.server.clients import Clients
from tests.server.gunicorn_process import chunked, get, post
from tests.server.memory_server import OK, OPERATOR, UNIX, occupy, one_step_in_a_turn, release, start_of


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


def test_an_operator_does_not_queue(worker):
    occupy(worker)
    waiting = worker.connected(get("/"))
    assert start_of(worker.connected(get("/live"), to=OPERATOR)) == OK
    release(worker)
    assert start_of(waiting) == OK


def test_a_worker_without_a_master_stops(worker):
    worker.ppid = 1 << 30
    worker.pass_time(1.0)
    assert not worker.alive
    assert not worker.turn()


def test_a_stop_waits_for_no_idle_connection(make):
    worker = make(keepalive=60)
    idle, late, part = worker.connected(), worker.connected(get("/")), worker.connected(b"G")
    late.read_all()
    waiting, silent = (socket.create_connection(worker.sockets[0].getsockname(), 5) for _ in range(2))
    waiting.send(get("/"))
    worker.alive = False
    worker.settle()
    assert waiting.recv(12) == OK  # which no turn had accepted
    waiting.close()
    worker.pass_time(turns.STOP_LINGER - 0.1)
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
    pending = [socket.create_connection(worker.sockets[0].getsockname()) for _ in range(40)]
    worker.alive, found = False, [0]
    while worker.managers._listeners:
        worker.take_turns()
        worker.now += clients.SHARE_SECONDS / 2
        found.append(worker.open)
    assert max(after - before for before, after in pairwise(found)) == clients.ACCEPTS
    assert found[-1] == 40
    for each in pending:
        each.close()


def test_a_stop_waits_for_the_operators_requests_only(worker):
    idle, part = worker.connected(to=OPERATOR), worker.connected(b"G", to=OPERATOR)
    worker.alive = False
    worker.settle()
    worker.pass_time(turns.STOP_LINGER + 0.1)
    assert (idle.is_ended(), worker.turn()) == (False, True)
    part.send(get("/live")[1:])
    assert start_of(part) == OK
    part.close()
    assert not worker.turn()


def test_a_limit_of_0_is_the_largest(make):
    worker = make(limit_request_line=0, limit_request_fields=0, limit_request_field_size=0)
    assert start_of(worker.connected(get("/"))) == OK


def test_accepted_keys_come_before_strangers(worker, monkeypatch):
    served, wsgi = [], worker.wsgi
    worker.wsgi = lambda environ, start: served.append(environ["PATH_INFO"]) or wsgi(environ, start)
    monkeypatch.setattr(turns, "STRANGER_SECONDS", -1.0)
    known, *strangers = worker.connected(get("/")), *[worker.connected() for _ in range(4)]
    for each in strangers:
        each.socket.send(get("/stranger"))
    known.socket.send(get("/known"))
    worker.take_turns(3)
    assert served[:3] == ["/", "/known", "/stranger"]
    worker.settle()
    assert len(served) == 6


def test_a_write_counts_as_one(worker):
    found, wsgi = [], worker.wsgi
    worker.wsgi = lambda *call: found.append(worker.queue._writing) or wsgi(*call)
    for method in (b"GET", b"HEAD", b"POST", b"PATCH"):
        worker.connected(get("/").replace(b"GET", method))
    assert found == [0, 0, 1, 1]


def failing_accept(works, errno, lacks):
    def accepted(self, listener):
        if lacks:
            raise OSError(errno, "no")
        yield from works(self, listener)

    return accepted


@pytest.mark.parametrize("errno", [EMFILE, EBADF])
def test_listeners_recover_from_errors(make, monkeypatch, errno):
    lacks = [True]
    monkeypatch.setattr(Clients, "_accepted", failing_accept(Clients._accepted, errno, lacks))
    worker = make()
    found = [worker.connected(get("/"), to=each) for each in (OPERATOR, 0, UNIX)]
    assert worker.open == 0
    assert not worker.has_ready  # an immediate retry would only use the processor
    lacks.clear()
    worker.pass_time(1.0)
    assert [start_of(each) for each in found] == [OK] * 3


@pytest.mark.parametrize(("errno", "is_given_up"), [(EMFILE, True), (EBADF, False)])
def test_managers_make_room_for_operators(worker, monkeypatch, errno, is_given_up):
    expendable = worker.connected()
    lacks = [True]
    works = failing_accept(Clients._accepted, errno, lacks)

    def accepted(self, listener):
        if not worker.managers.open:
            lacks.clear()
        return works(self, listener)

    monkeypatch.setattr(Clients, "_accepted", accepted)
    found = worker.connected(get("/live"), to=OPERATOR)
    assert start_of(found) == (OK if is_given_up else b"")
    assert expendable.is_ended() == is_given_up


@pytest.mark.parametrize("errno", [ECONNABORTED, ENETDOWN])
@pytest.mark.parametrize("is_alive", [True, False])
def test_a_failed_accept_delays_no_other(worker, monkeypatch, errno, is_alive):
    accept, errors = socket.socket.accept, iter(range(3))

    def failing(listener):
        if next(errors, None) is not None:
            raise OSError(errno, "of this connection")
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", failing)
    waiting = socket.create_connection(worker.sockets[0].getsockname())
    waiting.send(get("/"))
    worker.alive = is_alive
    worker.settle()
    assert waiting.recv(12) == OK
    waiting.close()


@pytest.mark.parametrize(("workers", "more"), [(1, 4), (2, 1)])
def test_workers_share_waiting_connections(make, workers, more):
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

    shared = [min(more + paused, 4) for paused in range(4)]
    assert list(accepted()) == shared
    assert list(accepted()) == [4] * 4  # as many were open before
    worker.pass_time(1)
    assert list(accepted()) == shared


def test_connections_take_turns(worker, monkeypatch):
    one_step_in_a_turn(monkeypatch)
    served, wsgi = [], worker.wsgi
    worker.wsgi = lambda environ, start: served.append(environ["PATH_INFO"]) or wsgi(environ, start)
    found = [worker.connected(get("/")) for _ in range(3)]
    served.clear()
    for number, each in enumerate(found):
        each.socket.send(get(f"/{number}") * 3)
    worker.settle()
    assert sorted(served[:3]) == sorted(served[3:6]) == sorted(served[6:]) == ["/0", "/1", "/2"]


def test_bodies_come_after_heads(worker, monkeypatch):
    one_step_in_a_turn(monkeypatch)  # and one of a body
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
    collected = []
    calls = {"get_count": lambda: (0, 0, 11), "collect": lambda: collected.append(1)}
    monkeypatch.setattr(turns, "gc", SimpleNamespace(**calls))
    monkeypatch.setattr(turns, "COLLECTED_CLIENTS", 1)
    found = [worker.connected() for _ in range(2)]
    collected.clear()
    worker.pass_time(1)
    assert not collected
    found[0].close()
    worker.pass_time(1)
    assert collected
