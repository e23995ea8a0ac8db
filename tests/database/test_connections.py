"""Connections that die cost no read, and the line for one loses none; its order and faults are simulated."""

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
from greenlet import GreenletExit

from stackmgr.database import pool, statements
from stackmgr.database.connection import DatabaseConnection
from stackmgr.database.pool import Database
from stackmgr.database.statements import Statement
from stackmgr.errors import DatabaseError
from stackmgr.scheduler import Signal, wait_for
from tests.database.subject import PATIENCE, at_once
from tests.support.recorder import opened
from tests.support.waiting import eventually

VERIFY = (statements.load("api_key_verify"), {"key_digest": b""})


def test_dead_idle_connections_cost_nothing(server, subject):
    for backend in subject.backends():
        server.terminate_backend(backend)
    for _ in range(5):
        assert at_once([subject.operations()["get"]] * 4) == [200] * 4
    assert subject.operations()["update"]() == 200
    assert subject.client.statements == ["stack_update"]
    assert subject.operations()["get"]() == 200
    assert subject.client.statements == ["stack_get"]
    subject.assert_complete()


@pytest.mark.parametrize("max_rows", [None, 1], ids=["alone", "shared"])
@pytest.mark.parametrize("is_prepared", [True, False])
def test_interrupted_connection_is_closed(subject, monkeypatch, max_rows, is_prepared):
    waits = iter([True] * (not is_prepared))

    def wait(*arguments: Any) -> bool:
        if not next(waits, False):
            raise GreenletExit
        return wait_for(*arguments)

    assert subject.operations()["get"]() == 200
    session = subject.database.session()
    session.row(*VERIFY, max_rows=max_rows)
    used = subject.database._pool._pool[-1]
    if not is_prepared:
        used.execute(b"DEALLOCATE ALL")
    with monkeypatch.context() as patch:
        patch.setattr("stackmgr.database.connection.wait_for", wait)
        with pytest.raises(GreenletExit):
            session.row(*VERIFY, max_rows=max_rows)
    assert used.closed
    subject.assert_complete()


def test_only_a_wait_is_observed(subject):
    waits: list[float] = []
    subject.database.on_wait(waits.append)
    with ThreadPoolExecutor() as threads:
        with subject.every_connection():
            with pytest.raises(DatabaseError, match="no_connection"):
                subject.database.acquire(time.monotonic() + 0.01)
            status = threads.submit(subject.operations()["get"])
            eventually(lambda: subject.database._pool._waiting)
        assert (status.result(), len(waits)) == (200, 2)
    assert (subject.operations()["get"](), len(waits)) == (200, 2)
    subject.assert_complete()


def acquired(database: Database) -> DatabaseConnection:
    return database.acquire(time.monotonic() + PATIENCE)


def assert_complete(database: Database, size: int) -> None:
    for connection in [acquired(database) for _ in range(size)]:
        database.release(connection)
    line = database._pool
    eventually(lambda: (line._nconns, len(line._pool), len(line._waiting)) == (size, size, 0))


def test_failed_request_passes_its_connection_on(make_database, greenlets, monkeypatch):
    single = make_database(1)
    held = greenlets.do(partial(acquired, single))

    def fail(_: Signal, __: float) -> bool:
        single.release(held)
        raise GreenletExit

    with monkeypatch.context() as patch:
        patch.setattr(Signal, "wait", fail)
        with pytest.raises(GreenletExit):
            acquired(single)
    assert_complete(single, 1)


def test_old_connection_is_replaced(make_database, monkeypatch):
    monkeypatch.setattr(pool, "MIN_DRAIN_INTERVAL", PATIENCE)
    double = make_database(2)
    old = acquired(double)
    assert old._expire_at < time.monotonic() + 600
    old._expire_at = 0.0
    double.release(old)
    assert old.closed
    assert_complete(double, 2)
    for _ in range(2):
        assert_complete(double, 2)
        double._pool._shrink_pool()  # as at each interval; both were in use since the last one
        assert double._pool._nconns == 2
    double._pool._shrink_pool()
    assert double._pool._nconns == 1
    old = acquired(double)
    for is_closed in (True, False, True):  # by a second drain, too soon after the first one, and a third
        double._drained_at -= 0.6 * PATIENCE
        double.drain()
        double.release(old)
        assert old.closed == is_closed
        old = acquired(double)
    double.release(old)


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


def test_no_request_waits_for_a_closed_pool(make_database, monkeypatch):
    single = make_database(1)
    held = acquired(single)
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(acquired, single)
        eventually(lambda: single._pool._waiting)
        single.close()
        with pytest.raises(DatabaseError, match="no_connection"):
            waiting.result(PATIENCE / 2)
    single.release(held)
    monkeypatch.setattr(Signal, "wait", Mock(side_effect=AssertionError))
    with pytest.raises(DatabaseError, match="no_connection"):
        acquired(single)
    with pytest.raises(AssertionError, match="after the fork"):
        acquired(Database("", pool_size=1))


def test_failed_attempts_to_connect_are_logged_at_intervals(caplog):
    nowhere = Database("postgresql://127.0.0.1:1/none", pool_size=1)
    nowhere.open()
    with pytest.raises(DatabaseError, match="no_connection"):
        nowhere.acquire(time.monotonic() + 1)
    assert nowhere.stats()["connections_num"] < 50
    assert nowhere.acquire_seconds >= 5 * pool.RECONNECT_INTERVAL
    nowhere._pool._maybe_grow_pool = Mock(side_effect=AssertionError)
    nowhere._pool._connect_for_line()  # for nobody
    nowhere.close()
    assert caplog.text.count("error connecting") <= 1


def test_a_connection_keeps_no_rows(make_database):
    single, rows = make_database(1), Statement("test", b"SELECT generate_series(1, 100)", (), writes=False)
    assert len(single.session().rows(rows, {})) == 100
    assert single._pool._pool[-1]._transformer.pgresult is None
