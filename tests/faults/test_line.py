"""The line for a connection loses none when something unforeseen happens; its order is simulated."""

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
from greenlet import GreenletExit
from psycopg_pool import ConnectionPool

from stackmgr.database.connection import DatabaseConnection
from stackmgr.database.hot_connections import HOT_SECONDS, HotConnections
from stackmgr.database.pool import Database
from stackmgr.errors import DatabaseError
from stackmgr.scheduler import Signal
from tests.faults.service import PATIENCE
from tests.support.greenlets import Running
from tests.support.waiting import eventually

# Shorter than a request in line waits for a connection, longer than it takes to make one.
SOON = 15.0


@pytest.fixture
def worker() -> Iterator[Running]:
    with ExitStack() as cleanup:
        yield Running(2, cleanup)


@pytest.fixture
def single(server) -> Iterator[Database]:
    """A database with one connection."""
    database = Database(server.url(), pool_size=1, deadline=PATIENCE)
    database.open()
    yield database
    database.close()


def acquired(database: Database, seconds: float = PATIENCE) -> DatabaseConnection:
    return database.acquire(time.monotonic() + seconds)


def release(database: Database, connection: DatabaseConnection, *, through_pool: bool = False) -> None:
    """Release a connection directly to the next request, or as one that has been out of the pool for long."""
    if through_pool:
        connection.acquired_at -= HOT_SECONDS
    database.release(connection)


def assert_whole(database: Database) -> None:
    """Fail if the connection, or the room for it, is lost."""
    database.release(acquired(database, SOON))
    hot = database._hot
    eventually(lambda: (hot._room + len(hot), len(hot._line), hot._check_outs) == (1, 0, 0))


def test_a_request_that_fails_at_the_moment_of_its_turn_passes_the_connection_on(single, worker, monkeypatch):
    held = worker.do(partial(acquired, single))

    def fail(_: Signal, __: float) -> bool:
        single.release(held)
        raise GreenletExit

    with monkeypatch.context() as patch:
        patch.setattr(Signal, "wait", fail)
        with pytest.raises(GreenletExit):
            acquired(single)
    assert_whole(single)


def test_an_unexpected_failure_of_the_pool_fails_those_in_line_and_loses_no_room(single, worker, monkeypatch):
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    end_check_out = HotConnections.end_check_out

    def end_late(*arguments: Any) -> None:
        time.sleep(0.1)  # in which a request that saw the failure would join the line again
        end_check_out(*arguments)

    monkeypatch.setattr(HotConnections, "end_check_out", end_late)
    with monkeypatch.context() as patch:
        patch.setattr(ConnectionPool, "getconn", fail)
        # The pool may just have opened one.
        patch.setattr(ConnectionPool, "get_stats", lambda _: {"pool_available": 0})
        failed = worker.start(partial(acquired, single))
        with pytest.raises(DatabaseError) as ex:
            failed.result(SOON)
        assert isinstance(ex.value.__cause__, ZeroDivisionError)
    assert_whole(single)


def test_without_another_thread_a_ready_connection_is_acquired_and_none_blocks(single, worker, monkeypatch):
    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    release(single, worker.do(partial(acquired, single)), through_pool=True)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        held = worker.do(partial(acquired, single))
        waiting = worker.start(partial(acquired, single))
        eventually(lambda: single._hot._line)
        release(single, held, through_pool=True)
        single.release(waiting.result(SOON))
    assert_whole(single)
