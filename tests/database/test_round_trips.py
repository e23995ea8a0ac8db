"""Requests that share a round trip: whatever happens to one, each has its own outcome."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any

import psutil
import psycopg
import pytest

from stackmgr.database import round_trips
from stackmgr.database.connection import DatabaseConnection
from stackmgr.database.statements import Statement
from stackmgr.errors import DatabaseError
from tests.database.subject import PATIENCE, POOL_SIZE, Subject
from tests.support.examples import configuration
from tests.support.greenlets import Running
from tests.support.waiting import eventually

TOGETHER = round_trips.MAX_REQUESTS
LOCK = 4711


def _statement(name: str, text: bytes, *parameters: str) -> Statement:
    return Statement(name, text, parameters, writes=text.startswith(b"INSERT"))


ECHO = _statement("test_echo", b"SELECT $1::text", "value")
DIVIDE = _statement("test_divide", b"SELECT (1 / $1::integer)::text", "value")
SLEEP = _statement("test_sleep", b"SELECT $1::text FROM pg_catalog.pg_sleep($1::double precision)", "value")
LOCKED = _statement(
    "test_locked", b"SELECT $1::text FROM pg_catalog.pg_advisory_xact_lock_shared($1::bigint)", "value"
)
PAGE = _statement(
    "test_page", b"SELECT $1::text FROM pg_catalog.generate_series(1, $2::integer)", "value", "row_limit"
)
WRITE = _statement(
    "test_write",
    b"INSERT INTO public.written (value) SELECT $1::text FROM pg_catalog.pg_sleep($3::double precision)"
    b" WHERE $2::text IS NOT NULL RETURNING value",
    "stack_id", "manager_id", "seconds",
)  # fmt: skip

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
def written(admin: psycopg.Connection) -> Iterator[Callable[[], list[str]]]:
    """Make the table of WRITE; return a function that returns what is in it."""
    admin.execute(
        b"CREATE TABLE public.written (value text PRIMARY KEY CHECK (value <> 'bad'));"
        b"GRANT ALL ON public.written TO PUBLIC"
    )
    yield lambda: sorted(value for (value,) in admin.execute(b"SELECT value FROM public.written"))
    admin.execute(b"DROP TABLE public.written")


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many requests each round trip had."""
    numbers: list[int] = []
    run, run_together = DatabaseConnection.run, DatabaseConnection.run_together

    def record(self, execution, deadline):
        if execution.statement.name != "session_settings":
            numbers.append(1)
        return run(self, execution, deadline)

    def record_together(self, executions, deadline):
        numbers.append(len([each for each in executions if each.values]))
        return run_together(self, executions, deadline)

    monkeypatch.setattr(DatabaseConnection, "run", record)
    monkeypatch.setattr(DatabaseConnection, "run_together", record_together)
    return numbers


def look_up(subject: Subject, statement: Statement, value: object) -> Callable[[], str]:
    def call() -> str:
        [(found,)] = subject.database.session().rows(statement, {"value": value}, max_rows=1)
        return found

    return call


def write(subject: Subject, value: str, manager: str = "", seconds: float = 0) -> Callable[[], str]:
    def call() -> str:
        given = {"stack_id": value, "manager_id": manager or f"of {value[:100]}", "seconds": seconds}
        [(found,)] = subject.database.session().rows(WRITE, given, max_rows=1)
        return found

    return call


def echoes(subject: Subject, number: int = TOGETHER - 1) -> list[Callable[[], str]]:
    return [look_up(subject, ECHO, f"request {n}") for n in range(number)]


def writes(subject: Subject, number: int = TOGETHER - 1) -> list[Callable[[], str]]:
    return [write(subject, f"request {n}") for n in range(number)]


def assert_echoes(futures: "list[Future[str]]") -> None:
    assert [future.result(PATIENCE) for future in futures] == [f"request {n}" for n in range(len(futures))]


KINDS = {"read": (echoes, DIVIDE, "0", "22012"), "write": (writes, WRITE, "bad", "23514")}
each_kind = pytest.mark.parametrize("kind", KINDS)


@each_kind
@pytest.mark.usefixtures("written")
def test_requests_of_one_turn_share_a_round_trip(subject, start, sent, kind):
    assert_echoes(start(KINDS[kind][0](subject, 2 * TOGETHER + 1)))
    assert sent == [TOGETHER, TOGETHER, 1]
    subject.assert_complete()


@each_kind
@pytest.mark.parametrize("place", [0, 2])
def test_one_that_fails_fails_alone(  # noqa: PLR0913 - fixtures
    *, subject, start, sent, written, kind, place, caplog
):
    caplog.set_level("DEBUG", "stackmgr")
    make, statement, value, sqlstate = KINDS[kind]
    calls = make(subject)
    failing = write(subject, value) if statement is WRITE else look_up(subject, statement, value)
    calls.insert(place, failing)
    futures = start(calls)
    with pytest.raises(DatabaseError) as failure:
        futures.pop(place).result(PATIENCE)
    assert (failure.value.sqlstate, failure.value.statement) == (sqlstate, statement.name)
    assert_echoes(futures)
    assert sent == [TOGETHER, *[1] * TOGETHER]
    assert len(written()) == (TOGETHER - 1) * (kind == "write")
    assert f"a round trip of 8 requests was rolled back: {sqlstate}" in caplog.messages
    subject.assert_complete()


def test_a_failed_commit_fails_one(subject, start, sent, written, admin):
    admin.execute(b"ALTER TABLE public.written ADD UNIQUE (value) DEFERRABLE INITIALLY DEFERRED")
    admin.execute(b"ALTER TABLE public.written DROP CONSTRAINT written_pkey")
    admin.execute(b"INSERT INTO public.written VALUES ('request 3')")
    futures = start(writes(subject, TOGETHER))
    assert futures.pop(3).exception(PATIENCE).sqlstate == "23505"
    assert {future.result(PATIENCE) for future in futures} == {*written()} - {"request 3"}
    assert sent == [TOGETHER, *[1] * TOGETHER]
    subject.assert_complete()


def _lose_response(monkeypatch: pytest.MonkeyPatch, _: Any) -> None:
    def lose(self, statement, deadline):
        receive(self, statement, deadline)
        raise psycopg.OperationalError

    receive = DatabaseConnection._pipeline_results
    monkeypatch.setattr(DatabaseConnection, "_pipeline_results", lose)


def _end(_: pytest.MonkeyPatch, watcher: Any) -> Any:
    return watcher._connection.execute(
        b"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
    ).fetchall()


def _cancel_wait(_: pytest.MonkeyPatch, watcher: Any) -> Any:
    return watcher._connection.execute(b"SELECT pg_cancel_backend(%d)" % watcher.waiting_one())


@pytest.mark.parametrize(
    ("end", "seconds", "number", "reason"),
    [
        (_lose_response, 0, TOGETHER, "connection_lost"),
        (_end, 3, 0, "connection_lost"),
        (_cancel_wait, 0, TOGETHER, "unconfirmed"),
    ],
)
def test_no_write_of_unknown_outcome_is_sent_again(  # noqa: PLR0913 - fixtures
    *, subject, start, sent, written, watcher, monkeypatch, request, end, seconds, number, reason
):
    if end is _cancel_wait:
        request.getfixturevalue("standby_wanted")
    if end is _lose_response:
        end(monkeypatch, watcher)
    futures = start([write(subject, f"request {n}", seconds=seconds / TOGETHER) for n in range(TOGETHER)])
    if end is not _lose_response:
        eventually(lambda: end(monkeypatch, watcher))
    errors = [future.exception(PATIENCE) for future in futures]
    assert {(error.reason, error.statement) for error in errors} == {(reason, WRITE.name)}
    assert (len(written()), sent) == (number, [TOGETHER])


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
    assert sent == [TOGETHER - 1, *[1] * (TOGETHER - 1)]
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
    session = subject.database.session()
    return session.rows(PAGE, {"value": value, "row_limit": rows}, max_rows=rows)


@pytest.mark.usefixtures("written")
def test_a_lock_of_one_delays_no_other(subject, start, sent, admin, watcher):
    with admin.transaction():
        admin.execute(b"INSERT INTO public.written VALUES ('request 3')")
        futures = start(writes(subject, TOGETHER))
        hot = futures.pop(3)
        assert [future.result(PATIENCE) for future in futures] == [
            f"request {n}" for n in range(TOGETHER) if n != 3
        ]
        assert sent == [TOGETHER, *[1] * TOGETHER]
        # Its manager's writes run alone, one at a time; those of others share.
        sent.clear()
        later = start([write(subject, f"later {n}", "of request 3") for n in range(4)])
        others = start([write(subject, f"other {n}") for n in range(4)])
        assert [future.result(PATIENCE) for future in others] == [f"other {n}" for n in range(4)]
        assert sent == [4]
        assert len(watcher.waiting()) == 1
        assert not any(future.done() for future in [hot, *later])
    assert hot.exception(PATIENCE).sqlstate == "23505"
    assert [future.result(PATIENCE) for future in later] == [f"later {n}" for n in range(4)]
    assert sent == [4, 1, 1, 1, 1]
    subject.assert_complete()


@pytest.mark.parametrize("deadline", [4.0])
def test_a_locked_table_leaves_a_connection_to_reads(subject, start, written, admin, watcher):
    with admin.transaction():
        admin.execute(b"LOCK TABLE public.written IN SHARE MODE")
        futures = start(writes(subject, 2 * TOGETHER))
        eventually(lambda: len(watcher.waiting()) == POOL_SIZE - 1)
        assert_echoes(start(echoes(subject)))
        assert len(watcher.waiting()) == POOL_SIZE - 1
    assert {future.exception(PATIENCE) and future.exception().reason for future in futures} <= {
        None, "rejected", "no_connection",
    }  # fmt: skip
    assert len(written()) == len([future for future in futures if future.exception() is None])
    subject.assert_complete()


def test_large_writes_share_up_to_64_kb(subject, start, sent, written):
    sizes = 30_000, 30_000, 30_000, 70_000, 10
    futures = start([write(subject, f"{n}" + "x" * size) for n, size in enumerate(sizes)])
    assert [len(future.result(PATIENCE)) - 1 for future in futures] == list(sizes)
    assert (sorted(sent), len(written())) == ([1, 1, 1, 2], len(sizes))


def test_writes_of_a_variant_share_nothing(subject, start, sent, written):
    subject.database.variants = {"of Citus": WRITE}
    assert_echoes(start(writes(subject)))
    assert (sent, len(written())) == ([1] * (TOGETHER - 1), TOGETHER - 1)


@pytest.fixture
def together(subject, sent) -> Callable[..., list[Any]]:
    """Return a function that makes requests share a round trip, in any order, and returns the responses."""

    def together(calls: list[Callable[[], Any]]) -> list[Any]:
        with ThreadPoolExecutor(len(calls)) as threads:
            with subject.every_connection():
                futures = [threads.submit(call) for call in calls]
                lane = subject.database.round_trips._writes
                eventually(lambda: lane._open and len(lane._open.requests) == len(calls))
                sent.clear()
            found = [future.result() for future in futures]
        assert sent[0] == len(calls)
        return found

    return together


def test_creates_at_one_moment_are_listed_once(subject, together):
    client = subject.client
    made = together([partial(client.create, configuration(name=f"{n}"), key=f"{n}") for n in range(6)])
    ids = {response.json["id"] for response in made}
    listed, cursor = [], ""
    while cursor is not None:
        page = client.page(f"limit=2{cursor and '&cursor='}{cursor}").json
        listed += [stack["id"] for stack in page["items"]]
        cursor = page["next_cursor"]
    assert (len(ids), set(listed[:6]), listed[6:]) == (6, ids, [subject.stack_id])
    assert listed[:6] == sorted(ids, reverse=True)  # their creation time is that of the batch


def test_creates_with_one_key_share_a_round_trip(subject, together):
    client = subject.client
    bodies = configuration(name="a"), configuration(name="a"), configuration(name="b")
    made = together([partial(client.create, body, key="one") for body in bodies])
    assert sorted(response.status_int for response in made) in ([200, 201, 409], [201, 409, 409])
    assert len({response.json["id"] for response in made if response.status_int != 409}) == 1


def test_updates_of_one_stack_share_a_round_trip(subject, together, admin):
    names = [f"name {n}" for n in range(6)]
    made = together([partial(subject.client.update, subject.stack_id, {"name": name}) for name in names])
    assert [response.json["name"] for response in made] == names
    history = admin.execute(
        b"SELECT revision_number, revision_id::text, name, created_at FROM stackmgr.stack_revisions"
        b" WHERE stack_id = %s::text::uuid AND revision_number > 1 ORDER BY revision_number",
        [subject.stack_id],
    ).fetchall()
    assert [number for number, *_ in history] == [2, 3, 4, 5, 6, 7]
    returned = {(response.json["current_revision_id"], response.json["name"]) for response in made}
    assert {(revision, name) for _, revision, name, _ in history} == returned
    assert len({moment for *_, moment in history}) == 1
    assert subject.client.get(subject.stack_id).json["current_revision_id"] == history[-1][1]
