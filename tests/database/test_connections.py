"""Connections that die cost no read, never double a write, and are replaced as soon as there is a server."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import Mock

import pytest
from greenlet import GreenletExit
from psycopg_pool.base import AttemptWithBackoff

from stackmgr.database import statements
from stackmgr.database.connection import execution
from stackmgr.database.statements import Statement
from stackmgr.errors import DatabaseError
from stackmgr.scheduler import wait_for
from tests.database.subject import DEADLINE, PATIENCE, POOL_SIZE, Subject, at_once, in_time
from tests.support.waiting import eventually

GET = ["stack_get"]
UPDATE = ["stack_update"]
# Seconds in which the service is back when its database is: fewer than the pool would pause.
SOON = 5.0

with_short_deadline = pytest.mark.parametrize("deadline", [DEADLINE])


def _crash_all(server, subject):
    server.crash()
    server.start()


DEATHS = {
    "one backend is killed": lambda server, subject: server.kill_backend(subject.backends()[0]),
    "all backends are terminated": lambda server, subject: [
        *map(server.terminate_backend, subject.backends())
    ],
    "everything is killed and started": _crash_all,
}


@pytest.mark.parametrize("death", DEATHS.values(), ids=DEATHS)
def test_dead_idle_connections_cost_nothing(server, subject, death):
    death(server, subject)
    eventually(server.accepts)
    for _ in range(5):
        assert at_once([subject.operations()["get"]] * 4) == [200] * 4
    assert subject.operations()["update"]() == 200
    assert subject.client.statements == UPDATE
    assert subject.operations()["get"]() == 200
    assert subject.client.statements == GET
    subject.assert_complete()


@pytest.fixture
def long_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the pool, if it paused after a failed attempt to connect, pause for longer than SOON."""
    monkeypatch.setattr(AttemptWithBackoff, "INITIAL_DELAY", 4 * SOON)


def _first_success(subject: Subject) -> float:
    while subject.operations()["get"]() != 200:
        time.sleep(0.01)
    return time.monotonic()


@pytest.mark.usefixtures("long_pauses")
@with_short_deadline
def test_service_is_back_after_an_outage(server, subject):
    server.crash()
    for _ in range(5):
        with in_time():
            assert set(at_once([subject.operations()["get"]] * 4)) == {503}
    back: list[float] = []
    client = threading.Thread(target=lambda: back.append(_first_success(subject)))
    client.start()
    server.start()
    eventually(server.accepts)
    up = time.monotonic()
    client.join()
    assert back[0] - up < SOON
    subject.assert_complete()


@pytest.mark.usefixtures("long_pauses")
def test_service_may_start_before_its_database(server, make_subject):
    subject = make_subject()
    server.stop()
    late = make_subject.again(subject, deadline=6 * SOON)
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(late.operations()["get"])
        eventually(lambda: late.database._pool._waiting)
        server.start()
        assert waiting.result() == 200
    late.assert_complete()


VERIFY = (statements.load("api_key_verify"), {"key_digest": b""})
GET_STACK = statements.load("stack_get")


@pytest.fixture
def interrupt(monkeypatch):
    """Return a function that lets so many waits for the server end, and interrupts the next one."""

    def interrupt(waits: int) -> None:
        def wait(*arguments: Any) -> bool:
            nonlocal waits
            waits -= 1
            if waits < 0:
                raise GreenletExit
            return wait_for(*arguments)

        monkeypatch.setattr("stackmgr.database.connection.wait_for", wait)

    return interrupt


@pytest.mark.parametrize("max_rows", [None, 1], ids=["alone", "shared"])
@pytest.mark.parametrize("is_prepared", [True, False])
def test_interrupted_connection_is_closed(subject, interrupt, max_rows, is_prepared):
    assert subject.operations()["get"]() == 200
    session = subject.database.session()
    session.row(*VERIFY, max_rows=max_rows)
    used = subject.database._pool._pool[-1]
    if not is_prepared:
        used.execute(b"DEALLOCATE ALL")
    interrupt(0 if is_prepared else 1)
    with pytest.raises(GreenletExit):
        session.row(*VERIFY, max_rows=max_rows)
    assert used.closed
    interrupt(1_000_000)
    subject.assert_complete()


def test_unsendable_parameter_costs_no_connection(subject):
    assert subject.operations()["get"]() == 200
    before = set(subject.backends())
    session = subject.database.session()
    for max_rows in (None, 1):
        with pytest.raises(ValueError, match="U\\+0000"):
            session.row(GET_STACK, dict.fromkeys(GET_STACK.parameters, "\0"), max_rows=max_rows)
    assert set(subject.backends()) == before
    subject.assert_complete()


def test_requests_wait_in_line_and_lose_none(subject):
    waits: list[float] = []
    subject.database.on_wait(waits.append)

    def many() -> int:
        return max(subject.operations()[name]() for name in ("get", "update", "list") for _ in range(10))

    with ThreadPoolExecutor(4 * POOL_SIZE) as threads:
        with subject.every_connection():
            statuses = [threads.submit(many) for _ in range(4 * POOL_SIZE)]
            eventually(lambda: subject.database._pool._waiting)
        assert {status.result() for status in statuses} == {200}
    assert min(waits) > 0
    waits.clear()
    assert (many(), waits) == (200, [])
    subject.assert_complete()


@pytest.fixture
def connection(make_database):
    database = make_database(1)
    connection = database.acquire(time.monotonic() + PATIENCE)
    yield connection
    database.release(connection)


def test_failed_preparation_is_repeated(connection, admin, monkeypatch):
    missing = Statement("test", b"SELECT 1 FROM public.later", (), writes=False)
    monkeypatch.setattr(connection, "_execute_unprepared", Mock(side_effect=AssertionError))
    with pytest.raises(DatabaseError, check=lambda ex: ex.sqlstate == "42P01"):
        connection.run(execution(missing, {}), time.monotonic() + PATIENCE)
    admin.execute(b"CREATE TABLE public.later (); GRANT SELECT ON public.later TO PUBLIC")
    try:
        assert connection.run(execution(missing, {}), time.monotonic() + PATIENCE) == []
    finally:
        admin.execute(b"DROP TABLE public.later")


def test_a_connection_keeps_no_rows(connection):
    rows = Statement("test", b"SELECT generate_series(1, 100)", (), writes=False)
    assert len(connection.run(execution(rows, {}), time.monotonic() + PATIENCE)) == 100
    assert connection._transformer.pgresult is None
