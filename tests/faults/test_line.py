"""The line for a connection: in order of arrival, and no connection is lost."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import pytest
from greenlet import GreenletExit
from psycopg_pool import ConnectionPool

from stackmgr.database.connection import DatabaseConnection
from stackmgr.database.hot_connections import HOT_SECONDS, HotConnections
from stackmgr.database.pool import Database
from stackmgr.errors import DatabaseError
from stackmgr.scheduler import Signal, sleep
from tests.faults.service import PATIENCE
from tests.support.greenlets import Running
from tests.support.waiting import eventually

REQUESTS = 60
# Shorter than a request in line waits for a connection, longer than it takes to make one.
SOON = 15.0


@pytest.fixture
def worker() -> Iterator[Running]:
    with ExitStack() as cleanup:
        yield Running(REQUESTS, cleanup)


@pytest.fixture
def make_database(server) -> Iterator[Callable[[int], Database]]:
    with ExitStack() as cleanup:

        def make(size: int) -> Database:
            database = Database(server.url(), pool_size=size, deadline=PATIENCE)
            database.open()
            cleanup.callback(database.close)
            return database

        yield make


@pytest.fixture
def single(make_database) -> Database:
    """A database with one connection."""
    return make_database(1)


def acquired(database: Database, seconds: float = PATIENCE) -> DatabaseConnection:
    return database.acquire(time.monotonic() + seconds)


def release(database: Database, connection: DatabaseConnection, *, through_pool: bool = False) -> None:
    """Release a connection directly to the next request, or as one that has been out of the pool for long."""
    if through_pool:
        connection.acquired_at -= HOT_SECONDS
    database.release(connection)


def assert_whole(database: Database, size: int) -> None:
    """Fail if a connection, or the room for one, is lost."""
    connections = [acquired(database, SOON) for _ in range(size)]
    for connection in connections:
        database.release(connection)
    hot = database._hot
    eventually(lambda: (hot._room + len(hot), len(hot._line), hot._check_outs) == (size, 0, 0))


@pytest.mark.parametrize("through_pool", [False, True])
def test_requests_get_a_connection_in_the_order_in_which_they_came(single, worker, through_pool):
    came: list[tuple[int, int]] = []
    served: list[tuple[int, int]] = []

    def use(number: int) -> None:
        for turn in range(3):
            came.append((number, turn))
            connection = acquired(single)
            served.append((number, turn))
            sleep(0.001)
            release(single, connection, through_pool=through_pool)

    for request in [worker.start(partial(use, number)) for number in range(REQUESTS)]:
        request.result(PATIENCE)
    assert served == came
    assert_whole(single, 1)


@pytest.mark.parametrize("through_pool", [False, True])
def test_a_request_that_gives_up_at_the_moment_of_its_turn_costs_the_next_one_nothing(
    single, worker, through_pool
):
    held = worker.do(partial(acquired, single))
    short = worker.start(partial(acquired, single, 0.05))
    long = worker.start(partial(acquired, single))
    eventually(lambda: len(single._hot._line) == 2)

    def release_late() -> None:
        time.sleep(0.1)  # blocks all greenlets
        release(single, held, through_pool=through_pool)

    worker.do(release_late)
    with suppress(DatabaseError):
        single.release(short.result(SOON))
    single.release(long.result(SOON))
    assert_whole(single, 1)


def test_a_request_that_fails_at_the_moment_of_its_turn_passes_the_connection_on(single, worker, monkeypatch):
    held = worker.do(partial(acquired, single))

    def fail(_: Signal, __: float) -> bool:
        single.release(held)
        raise GreenletExit

    with monkeypatch.context() as patch:
        patch.setattr(Signal, "wait", fail)
        with pytest.raises(GreenletExit):
            acquired(single)
    assert_whole(single, 1)


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
        failed = worker.start(partial(acquired, single))
        with pytest.raises(DatabaseError) as ex:
            failed.result(SOON)
        assert isinstance(ex.value.__cause__, ZeroDivisionError)
    assert_whole(single, 1)


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
    assert_whole(single, 1)


@pytest.mark.parametrize("seed", range(3))
def test_no_connection_and_no_room_is_lost_whatever_happens_to_either(make_database, worker, seed):
    database = make_database(2)
    lucky: list[int] = []

    def use(number: int) -> None:
        chance = random.Random(f"{seed} {number}")  # noqa: S311 - the same in each run
        for _ in range(20):
            is_patient = chance.random() < 0.5
            try:
                connection = acquired(database, PATIENCE if is_patient else chance.uniform(0.001, 0.03))
            except DatabaseError:
                assert not is_patient
                continue
            lucky.append(number)
            sleep(chance.uniform(0, 0.001))
            if chance.random() < 0.1:
                connection.close()
            release(database, connection, through_pool=chance.random() < 0.2)

    threads = [threading.Thread(target=use, args=[number]) for number in (-1, -2)]
    for thread in threads:
        thread.start()
    for request in [worker.start(partial(use, number)) for number in range(REQUESTS)]:
        request.result(PATIENCE)
    for thread in threads:
        thread.join(PATIENCE)
    assert len(set(lucky)) == REQUESTS + len(threads)
    assert_whole(database, 2)
