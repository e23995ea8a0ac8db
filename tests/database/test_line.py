"""The line for a connection loses none when something unforeseen happens; its order is simulated."""

import itertools
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from unittest.mock import Mock

import pytest
from greenlet import GreenletExit

from stackmgr.database import pool, statements
from stackmgr.database.connection import DatabaseConnection
from stackmgr.database.pool import Database, Pool
from stackmgr.errors import DatabaseError
from stackmgr.scheduler import Signal
from tests.database.subject import PATIENCE
from tests.support.greenlets import Running
from tests.support.recorder import opened
from tests.support.waiting import eventually

VERIFY = (statements.load("api_key_verify"), {"key_digest": b""})
# Shorter than a request in line waits for a connection, longer than it takes to make one.
SOON = 15.0


@pytest.fixture
def worker() -> Iterator[Running]:
    with ExitStack() as cleanup:
        yield Running(3, cleanup)


@pytest.fixture
def single(make_database) -> Database:
    return make_database(1)


@pytest.fixture
def double(make_database) -> Database:
    return make_database(2)


def acquired(database: Database, seconds: float = PATIENCE) -> DatabaseConnection:
    return database.acquire(time.monotonic() + seconds)


def assert_complete(database: Database, size: int = 1) -> None:
    """Fail if a connection, or a place for one, is lost."""
    for connection in [acquired(database, SOON) for _ in range(size)]:
        database.release(connection)
    line = database._pool
    eventually(lambda: (line._nconns, len(line._pool), len(line._waiting)) == (size, size, 0))


def test_failed_request_passes_its_connection_on(single, worker, monkeypatch):
    held = worker.do(partial(acquired, single))

    def fail(_: Signal, __: float) -> bool:
        single.release(held)
        raise GreenletExit

    with monkeypatch.context() as patch:
        patch.setattr(Signal, "wait", fail)
        with pytest.raises(GreenletExit):
            acquired(single)
    assert_complete(single)


def test_old_connection_is_replaced(double):
    old = acquired(double)
    assert old._expire_at < time.monotonic() + 600
    old._expire_at = 0.0
    double.release(old)
    assert old.closed
    assert_complete(double, 2)


def test_new_connections_are_not_drained(single, monkeypatch):
    found = [acquired(single)]
    for interval in (10.0, 10.0, 0.0):
        monkeypatch.setattr(pool, "MIN_DRAIN_INTERVAL", interval)
        single.release(found[-1])
        single.drain()
        found.append(acquired(single))
    assert [one is other for one, other in itertools.pairwise(found)] == [False, True, False]


def test_idle_connections_are_closed_for_others(server, admin, monkeypatch):
    monkeypatch.setattr(pool, "MAX_IDLE_SECONDS", 0.1)
    admin.execute(b"CREATE ROLE limited LOGIN CONNECTION LIMIT 2 IN ROLE stackmgr_app")
    with opened(server.url(user="limited"), pool_size=2, deadline=PATIENCE) as first:
        held = [acquired(first), acquired(first)]
        with opened(server.url(user="limited"), pool_size=2, deadline=PATIENCE) as second:
            for connection in held:
                first.release(connection)
            second.release(acquired(second))
    admin.execute(b"DROP ROLE limited")


def test_no_request_waits_for_a_closed_pool(single, monkeypatch):
    single.close()
    monkeypatch.setattr(Signal, "wait", Mock(side_effect=AssertionError))
    with pytest.raises(DatabaseError, match="no_connection"):
        acquired(single)


def test_the_wait_in_line_leaves_time_for_the_statement(single, monkeypatch):
    found: list[float] = []
    acquire = Pool.acquire
    monkeypatch.setattr(Pool, "acquire", lambda self, until: found.append(until) or acquire(self, until))
    before = time.monotonic()
    single.session().row(*VERIFY)
    assert before + 0.4 * PATIENCE <= found[0] <= time.monotonic() + 0.4 * PATIENCE


def test_dead_connection_costs_no_place_in_line(single, worker, monkeypatch):
    held = worker.do(partial(acquired, single))
    order: list[int] = []

    def acquire(number: int) -> None:
        connection = acquired(single)
        order.append(number)
        single.release(connection)

    requests = [worker.start(partial(acquire, number)) for number in (1, 2)]
    eventually(lambda: len(single._pool._waiting) == 2)
    stale = iter([True])
    with monkeypatch.context() as patch:
        patch.setattr(DatabaseConnection, "is_stale", lambda _: next(stale, False))
        worker.do(partial(single.release, held))
        for request in requests:
            request.result(SOON)
    assert order == [1, 2]
    assert_complete(single)


def test_request_leaves_the_line_with_the_lock(single, worker):
    class Line(deque):
        def remove(self, waiter):
            removed.append(single._pool._lock._is_owned())
            super().remove(waiter)

    removed = []
    single._pool._waiting = Line()
    held = acquired(single)
    with pytest.raises(DatabaseError):
        acquired(single, 0.05)
    single.release(held)
    assert removed == [True]
