"""Reads of several requests in one round trip: whatever happens to one, each has its own outcome."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any

import psutil
import pytest

from stackmgr.database.connection import DatabaseConnection
from stackmgr.database.statements import Statement
from stackmgr.errors import DatabaseError
from tests.database.subject import PATIENCE, Subject
from tests.support.greenlets import Running
from tests.support.waiting import eventually

TOGETHER = 4
LOCK = 4711


def _statement(name: str, text: bytes, *parameters: str) -> Statement:
    return Statement(name, text, parameters, writes=False)


ECHO = _statement("test_echo", b"SELECT $1::text", "value")
DIVIDE = _statement("test_divide", b"SELECT (1 / $1::integer)::text", "value")
SLEEP = _statement("test_sleep", b"SELECT $1::text FROM pg_catalog.pg_sleep($1::double precision)", "value")
LOCKED = _statement(
    "test_locked", b"SELECT $1::text FROM pg_catalog.pg_advisory_xact_lock_shared($1::bigint)", "value"
)
PAGE = _statement(
    "test_page", b"SELECT $1::text FROM pg_catalog.generate_series(1, $2::integer)", "value", "row_limit"
)

Start = Callable[[list[Callable[[], Any]]], "list[Future[Any]]"]


@pytest.fixture
def greenlets() -> Iterator[Running]:
    with ExitStack() as cleanup:
        yield Running(4 * TOGETHER, cleanup)


@pytest.fixture
def start(greenlets) -> Start:
    """Return a function that starts calls in the same turn of the scheduler."""

    def start(calls: list[Callable[[], Any]]) -> "list[Future[Any]]":
        started: Any = greenlets.do(lambda: [greenlets.start(call) for call in calls])
        return started

    return start


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many statements each round trip had; 0 is a statement that shares none."""
    numbers: list[int] = []
    run, run_together = DatabaseConnection.run, DatabaseConnection.run_together

    def record(self, statement, parameters, deadline):
        numbers.append(0)
        return run(self, statement, parameters, deadline)

    def record_together(self, reads, deadline):
        numbers.append(len(reads))
        return run_together(self, reads, deadline)

    monkeypatch.setattr(DatabaseConnection, "run", record)
    monkeypatch.setattr(DatabaseConnection, "run_together", record_together)
    return numbers


def look_up(subject: Subject, statement: Statement, value: object) -> Callable[[], str]:
    def call() -> str:
        with subject.database.session() as session:
            [(found,)] = session.rows(statement, {"value": value}, max_rows=1)
            return found

    return call


def echoes(subject: Subject, number: int = TOGETHER - 1) -> list[Callable[[], str]]:
    return [look_up(subject, ECHO, f"request {n}") for n in range(number)]


def assert_echoes(futures: "list[Future[str]]") -> None:
    assert [future.result(PATIENCE) for future in futures] == [f"request {n}" for n in range(len(futures))]


def test_requests_of_one_turn_share_round_trips_of_four(subject, start, sent):
    assert_echoes(start(echoes(subject, 2 * TOGETHER + 1)))
    assert sent == [TOGETHER, TOGETHER, 1]
    subject.assert_complete()


@pytest.mark.parametrize("place", [0, 2])
def test_one_that_fails_fails_alone(subject, start, sent, place, caplog):
    """Those after it run again; it does not, nor do those before it."""
    caplog.set_level("DEBUG", "stackmgr")
    calls = echoes(subject)
    calls.insert(place, look_up(subject, DIVIDE, 0))
    futures = start(calls)
    with pytest.raises(DatabaseError) as failure:
        futures.pop(place).result(PATIENCE)
    assert failure.value.sqlstate == "22012"
    assert failure.value.statement == DIVIDE.name
    assert_echoes(futures)
    assert sent == [TOGETHER, *[1] * (TOGETHER - 1 - place)]
    assert "a shared round trip of 4 requests failed: rejected 22012" in caplog.messages
    subject.assert_complete()


@pytest.mark.parametrize("deadline", [4.0])
@pytest.mark.parametrize("place", [0, 2])
def test_slow_read_repeats_no_other(subject, start, sent, place):
    calls = echoes(subject)
    calls.insert(place, look_up(subject, SLEEP, "1.5"))
    futures = start(calls)
    assert futures.pop(place).result(PATIENCE) == "1.5"
    assert_echoes(futures)
    assert sent == [TOGETHER]
    subject.assert_complete()


@pytest.mark.parametrize("deadline", [4.0])
def test_a_hanging_backend_costs_no_read(subject, start, sent):
    backend = psutil.Process(subject.database._pool._pool[-1].info.backend_pid)
    backend.suspend()
    assert_echoes(start(echoes(subject)))
    backend.resume()
    assert [number for number in sent if number] == [TOGETHER - 1, 1, 1, 1]  # 0: of a new connection
    subject.assert_complete()


@pytest.fixture
def lock(admin) -> Iterator[Callable[[], None]]:
    """Hold the lock that LOCKED waits for; the value releases it."""
    admin.execute(b"SELECT pg_advisory_lock(%d)" % LOCK)
    yield lambda: admin.execute(b"SELECT pg_advisory_unlock_all()")
    admin.execute(b"SELECT pg_advisory_unlock_all()")


@pytest.mark.parametrize("place", [0, 2])
@pytest.mark.parametrize("end", ["pg_cancel_backend", "pg_terminate_backend"])
def test_ended_session_costs_no_other_read(  # noqa: PLR0913 - fixtures
    *, subject, start, lock, watcher, place, end
):
    calls = echoes(subject)
    calls.insert(place, look_up(subject, LOCKED, LOCK))
    futures = start(calls)
    pid = watcher.waiting_one()
    watcher._connection.execute(f"SELECT {end}({pid})")
    locked = futures.pop(place)
    assert_echoes(futures)
    if end == "pg_cancel_backend":  # as by a timeout: it would wait as long again
        assert locked.exception(PATIENCE).sqlstate == "57014"
        subject.assert_complete()
        return
    eventually(watcher.waiting)  # alone
    assert not locked.done()
    lock()
    assert locked.result(PATIENCE) == str(LOCK)
    subject.assert_complete()


def test_a_parameter_that_cannot_be_sent_fails_alone(subject, start, sent):
    calls = [look_up(subject, ECHO, "\0"), *echoes(subject)]
    malformed, *others = start(calls)
    with pytest.raises(ValueError, match="U\\+0000"):
        malformed.result(PATIENCE)
    assert_echoes(others)
    assert sent == [TOGETHER - 1]
    subject.assert_complete()


def test_large_pages_are_sent_alone(subject, start, sent):
    calls = [lambda rows=rows: len(page(subject, "a page", rows)) for rows in (32, 33, 32)]
    assert [future.result(PATIENCE) for future in start(calls)] == [32, 33, 32]
    assert sorted(sent) == [1, 2]
    subject.assert_complete()


def page(subject: Subject, value: str, rows: int) -> list[Any]:
    with subject.database.session() as session:
        return session.rows(PAGE, {"value": value, "row_limit": rows}, max_rows=rows)
