"""Requests that share a round trip: whatever happens to one, each has its own outcome."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import psycopg
import pytest

from stackmgr import scheduler
from stackmgr.database import conninfo, round_trips
from stackmgr.database.connection import DatabaseConnection, execution
from stackmgr.database.round_trips import RoundTrips, _Batch, _Lane
from stackmgr.database.session import Session
from stackmgr.database.statements import Statement
from stackmgr.errors import DatabaseError
from stackmgr.limits import BODY_LIMIT_BYTES
from stackmgr.stacks.cursor import Position
from stackmgr.stacks.repository import list_operation
from tests.database.subject import PATIENCE, Subject
from tests.support.examples import configuration
from tests.support.waiting import eventually

TOGETHER = round_trips.MAX_REQUESTS
ECHO = Statement("test_echo", b"SELECT $1::text", ("value",), writes=False)
DIVIDE = Statement("test_divide", b"SELECT (1 / $1::integer)::text", ("value",), writes=False)
LOCK = Statement("test_lock", b"SELECT pg_advisory_xact_lock_shared($1::int)::text", ("value",), writes=False)
SLOW = Statement("test_slow", b"SELECT $1 || pg_sleep(0.5)", ("value",), writes=True)
MISSING = Statement("test_missing", b"INSERT INTO public.nothing VALUES ($1)", ("value",), writes=True)
INSERT = b"INSERT INTO public.written (value) SELECT $1::text WHERE $2::text IS NOT NULL RETURNING value"
WRITE = Statement("test_write", INSERT, ("stack_id", "manager_id"), writes=True)
Calls = list[Callable[[], Any]]
Start = Callable[[Calls], "list[Future[Any]]"]


@pytest.fixture
def start(greenlets) -> Start:
    return lambda calls: greenlets.do(lambda: [greenlets.start(call) for call in calls])


@pytest.fixture
def written(admin: psycopg.Connection) -> Iterator[Callable[[], list[str]]]:
    admin.execute(
        b"CREATE TABLE public.written (value text PRIMARY KEY CHECK (value <> 'bad'));"
        b"GRANT ALL ON public.written TO PUBLIC"
    )
    yield lambda: sorted(value for (value,) in admin.execute(b"SELECT value FROM public.written"))
    admin.execute(b"DROP TABLE public.written")


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
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


def call(subject: Subject, statement: Statement, value: str, manager: str = "") -> Callable[[], str]:
    given = {"value": value, "stack_id": value, "manager_id": manager or f"of {value}"}
    return lambda: subject.database.session().row(statement, given, max_rows=1)[0]


def calls(subject: Subject, statement: Statement, number: int = TOGETHER - 1, value="request") -> Calls:
    return [call(subject, statement, f"{value} {n}") for n in range(number)]


def assert_results(futures: "list[Future[str]]", value: str = "request") -> None:
    assert [future.result(PATIENCE) for future in futures] == [f"{value} {n}" for n in range(len(futures))]


@pytest.mark.usefixtures("written")
@pytest.mark.parametrize("statement", [ECHO, WRITE], ids=["read", "write"])
def test_requests_of_one_turn_share_a_round_trip(subject, start, sent, statement):
    trips = subject.database.round_trips
    trips.sent = trips.requests = 0
    assert_results(start(calls(subject, statement, 2 * TOGETHER + 1)))
    assert sent == [TOGETHER, TOGETHER, 1]
    for each in calls(subject, statement, 8, "single"):
        start([each])[0].result(PATIENCE)
    for kind in ("after single ones", "after a batch"):
        start(calls(subject, statement, 3, kind))[2].result(PATIENCE)
    assert sent[2:] == [*[1] * 10, 2, 3]
    assert (trips.sent, trips.requests) == (len(sent), sum(sent))
    assert TOGETHER * max(BODY_LIMIT_BYTES, round_trips.MAX_ROWS * 5_300) < 3_200_000  # bytes of a batch
    subject.assert_complete()


@pytest.mark.usefixtures("written")
def test_a_full_batch_does_not_wait_for_a_busy_thread(subject, greenlets, start, monkeypatch):
    monkeypatch.setattr(scheduler, "BUSY_SECONDS", PATIENCE)
    greenlets.is_busy = True
    single = start(calls(subject, ECHO, 1))
    assert_results(start(calls(subject, WRITE, TOGETHER)))
    large = start([call(subject, WRITE, value * 40_000) for value in "ab"])
    assert large[0].result(PATIENCE / 2) == "a" * 40_000
    assert [future.done() for future in (*single, large[1])] == [False, False]
    greenlets.is_busy = False
    assert large[1].result(PATIENCE) == "b" * 40_000
    assert_results(single)


def test_a_batch_waits_for_a_larger_one_under_way(subject, start, sent, admin, monkeypatch):
    monkeypatch.setattr(round_trips, "BUSY_SECONDS", PATIENCE)
    with admin.transaction():
        admin.execute(b"SELECT pg_advisory_xact_lock(4663)")
        under_way = start([call(subject, LOCK, "4663"), *calls(subject, ECHO, 2, "first")])
        eventually(lambda: sent == [3])
        second = start(calls(subject, ECHO, 2, "second"))
        assert not any(future.done() for future in second)
        third = start(calls(subject, ECHO, 1, "third"))
        assert_results(second, "second")
        assert_results(third, "third")
        assert sent == [3, 3]
        fourth = start(calls(subject, ECHO, 1, "fourth"))
        assert not fourth[0].done()
    assert_results(fourth, "fourth")
    assert len([future.result(PATIENCE) for future in under_way]) == 3


@pytest.mark.parametrize(("good", "bad", "value", "sqlstate"), [
    (ECHO, DIVIDE, "0", "22012"), (WRITE, WRITE, "bad", "23514"), (WRITE, MISSING, "", "42P01"),
])  # fmt: skip
@pytest.mark.parametrize("place", [0, 2])
def test_one_that_fails_fails_alone(subject, start, sent, written, good, bad, value, sqlstate, place, caplog):
    caplog.set_level("DEBUG", "stackmgr")
    given = calls(subject, good)
    given.insert(place, call(subject, bad, value))
    futures = start(given)
    failure = futures.pop(place).exception(PATIENCE)
    assert (failure.sqlstate, failure.statement) == (sqlstate, bad.name)
    assert_results(futures)
    assert sent == [TOGETHER, *[1] * TOGETHER]
    assert len(written()) == (TOGETHER - 1) * (good is WRITE)
    assert f"a round trip of {TOGETHER} requests was rolled back: {sqlstate}" in caplog.messages
    assert subject.database.round_trips._alone == {}
    subject.assert_complete()


def test_creates_lock_in_the_order_of_their_keys_and_updates_of_stacks():
    def order(**values):
        written = SimpleNamespace(statement=SimpleNamespace(name="write"), value=values.get)
        return round_trips._lock_order(SimpleNamespace(execution=written))

    first = order(manager_id=b"1", idempotency_key=b"1", stack_id=b"2")
    assert first < order(manager_id=b"1", idempotency_key=b"2", stack_id=b"1")
    assert first < order(manager_id=b"1", stack_id=b"2")
    assert first < order(manager_id=b"2")
    assert order(manager_id=b"1", stack_id=b"1") < order(manager_id=b"1", stack_id=b"2")


def test_a_failed_commit_fails_one(subject, start, sent, written, admin):
    admin.execute(b"ALTER TABLE public.written ADD UNIQUE (value) DEFERRABLE INITIALLY DEFERRED")
    admin.execute(b"ALTER TABLE public.written DROP CONSTRAINT written_pkey")
    admin.execute(b"INSERT INTO public.written VALUES ('request 3')")
    futures = start(calls(subject, WRITE, TOGETHER))
    assert futures.pop(3).exception(PATIENCE).sqlstate == "23505"
    assert {future.result(PATIENCE) for future in futures} == {*written()} - {"request 3"}
    assert sent == [TOGETHER, *[1] * TOGETHER]
    subject.assert_complete()


@pytest.mark.parametrize("number", [1, TOGETHER])
@pytest.mark.parametrize(("end", "reason", "alone"), [
    ("pg_terminate_backend", "connection_lost", None), ("pg_cancel_backend", "unconfirmed", "01000"),
])  # fmt: skip
def test_no_write_of_unknown_outcome_is_sent_again(
    subject, start, sent, written, watcher, admin, standby_wanted, end, reason, alone, number
):
    futures = start(calls(subject, WRITE, number))
    admin.execute(f"SELECT {end}({watcher.waiting_one()})".encode())
    errors = [future.exception(PATIENCE) for future in futures]
    expected = (reason, WRITE.name, alone if number == 1 else None)
    assert {(error.reason, error.statement, error.sqlstate) for error in errors} == {expected}
    assert sent == [number]
    eventually(lambda: len(written()) == number)


def test_a_write_that_has_given_up_is_not_sent(subject, start, written, monkeypatch):
    monkeypatch.setattr(round_trips, "_LEAST_SHARE", 0.0)
    given = {"stack_id": "second", "manager_id": "second"}
    hasty = partial(Session(subject.database, 0.1).row, WRITE, given, max_rows=1)
    with subject.every_connection():
        first, second = start([call(subject, WRITE, "first"), hasty])
        assert second.exception(PATIENCE).reason == "no_connection"
    assert first.result(PATIENCE) == "first"
    assert written() == ["first"]


def test_a_batch_that_fails_in_its_turn_passes_it_on(monkeypatch):
    lane, batches = _Lane(1), [_Batch() for _ in range(4)]
    monkeypatch.setattr(scheduler.Signal, "wait", lambda *_: True)
    for batch in batches[:3]:
        lane.enter(batch, PATIENCE)
    for batch in batches[:2]:
        assert lane.under_way == [batch]
        lane.leave(batch)
    lane._open, batches[3].is_gathered = batches[3], scheduler.Signal()
    for wait in (lambda *_: False, lambda *_: (lane.leave(batches[2]), 1 / 0)):
        monkeypatch.setattr(scheduler.Signal, "wait", wait)
        with pytest.raises((DatabaseError, ZeroDivisionError)):
            lane.enter(batches[3], PATIENCE)
        assert (lane._open, len(lane._line)) == (None, 0)
    assert lane.under_way == []


def test_a_leader_that_fails_leaves_the_outcome_unknown(subject, start, monkeypatch):
    monkeypatch.setattr(DatabaseConnection, "run_together", Mock(side_effect=MemoryError))
    _, *others = start(calls(subject, WRITE, 3))
    assert [each.exception(PATIENCE).reason for each in others] == ["connection_lost"] * 2


@pytest.mark.parametrize(("limit", "stored", "errors"), [
    ("statement_timeout", TOGETHER - 1, {("rejected", "57014"): 1}),
    ("transaction_timeout", 0, {("connection_lost", None): TOGETHER}),  # it ends the session
    ("idle_in_transaction_session_timeout", TOGETHER - 1, {}),
])  # fmt: skip
def test_a_server_limit_ends_a_batch(make_subject, start, written, admin, monkeypatch, limit, stored, errors):
    if not admin.execute(b"SELECT name FROM pg_settings WHERE name = %s", [limit]).fetchone():
        pytest.skip("the limit is PostgreSQL 17's")
    monkeypatch.setitem(conninfo.SERVER_SETTINGS, limit, "200ms")
    subject = make_subject()
    futures = start([call(subject, SLOW, "slow"), *calls(subject, WRITE)])
    found = [ex for future in futures if (ex := future.exception(PATIENCE))]
    assert Counter((ex.reason, ex.sqlstate) for ex in found) == errors
    assert len(written()) == stored
    subject.assert_complete()


def test_a_lock_of_one_delays_no_other(subject, start, sent, written, admin, watcher, monkeypatch):
    began = time.monotonic()
    with admin.transaction():
        admin.execute(b"INSERT INTO public.written VALUES ('request 3')")
        futures = start(calls(subject, WRITE, TOGETHER))
        hot = futures.pop(3)
        # Sooner than the lock_timeout of a session, a third of PATIENCE.
        assert {future.result(PATIENCE / 6) for future in futures} == {*written()} - {"request 3"}
        assert sent == [TOGETHER, *[1] * TOGETHER]
        # Its manager's writes run alone, one at a time; those of others share.
        sent.clear()
        later = start([call(subject, WRITE, f"later {n}", "of request 3") for n in range(4)])
        assert_results(start(calls(subject, WRITE, 4, "other")), "other")
        assert sent == [4]
        assert len(watcher.waiting()) == 1
        assert not any(future.done() for future in [hot, *later])
    assert hot.exception(PATIENCE).sqlstate == "23505"
    assert_results(later, "later")
    assert sent == [4, 1, 1, 1, 1]
    until, _ = subject.database.round_trips._alone[b"of request 3"]
    assert until >= began + 5
    for moment, trips in ((until - 0.01, [1, 1]), (until, [2])):
        sent.clear()
        monkeypatch.setattr(round_trips, "time", SimpleNamespace(monotonic=lambda: moment))  # noqa: B023
        start([call(subject, WRITE, f"{trips} {n}", "of request 3") for n in range(2)])[1].result(PATIENCE)
        assert sent == trips
    monkeypatch.undo()
    subject.assert_complete()


def test_a_lane_is_forgotten_once_it_is_not_used(start, monkeypatch):
    trips, clock, error = RoundTrips(Mock(), 2), iter([0.0, 0.0, 6.0]), DatabaseError("", sqlstate="55P03")
    monkeypatch.setattr(round_trips, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    note = lambda each: trips._note_wait(execution(WRITE, {"stack_id": "", "manager_id": each}), error)  # noqa: E731
    for manager in ("used", "left", "used"):
        start([partial(note, manager)])[0].result(PATIENCE)
        trips._alone[b"used"][1].under_way.append(_Batch())
    assert [(each, len(lane.under_way)) for each, (_, lane) in trips._alone.items()] == [(b"used", 3)]


PAGES = [list_operation(Position(None, None), round_trips.MAX_ROWS - more).max_rows for more in (1, 0)]


@pytest.mark.usefixtures("written")
@pytest.mark.parametrize(("statement", "max_rows", "more", "trips"), [
    (ECHO, PAGES[0], 0, [2]), (ECHO, PAGES[1], 0, [1, 1]), (ECHO, None, 0, [1, 1]), (ECHO, 1, -9, [2]),
    (WRITE, 1, 0.5, [2]), (WRITE, 1, -0.5, [1, 1]),
])  # fmt: skip
def test_small_results_and_writes_with_time_share(  # which have *more* seconds than a write needs
    subject, start, sent, monkeypatch, deadline, statement, max_rows, more, trips
):
    moment = time.monotonic() + 0.4 * deadline - more
    monkeypatch.setattr(round_trips, "time", SimpleNamespace(monotonic=lambda: moment))
    given = ({"value": n, "stack_id": n, "manager_id": n} for n in "ab")
    row = lambda each: subject.database.session().row(statement, each, max_rows=max_rows)  # noqa: E731
    rows = [each.result(PATIENCE) for each in start([partial(row, each) for each in given])]
    assert rows == [("a",), ("b",)]
    assert sent == trips


def test_writes_of_a_variant_share_nothing(subject, start, sent, written):
    subject.database.variants = {"of Citus": WRITE}
    assert_results(start(calls(subject, WRITE)))
    assert (sent, len(written())) == ([1] * (TOGETHER - 1), TOGETHER - 1)


@pytest.fixture
def together(subject, sent) -> Callable[..., list[Any]]:
    """Return a function that makes requests share a round trip, in any order, and returns the responses."""

    def together(calls: Calls, before: Callable[[], object] = int) -> list[Any]:
        with ThreadPoolExecutor(len(calls)) as threads:
            with subject.every_connection():
                futures = [threads.submit(call) for call in calls]
                lane = subject.database.round_trips._writes
                eventually(lambda: lane._open and len(lane._open.requests) == len(calls))
                sent.clear()
                before()
            found = [future.result() for future in futures]
        assert sent[0] == len(calls)
        return found

    return together


def test_creates_at_one_moment_are_listed_once(subject, together):
    client = subject.client
    made = together([partial(client.create, configuration(name=f"{n}"), key=f"{n}") for n in range(6)])
    ids = {response.json["id"] for response in made}
    listed = client.walk(2)
    assert (len(ids), set(listed[:6]), listed[6:]) == (6, ids, [subject.stack_id])
    assert listed[:6] == sorted(ids, reverse=True)  # their creation time is that of the batch


def test_a_key_revoked_before_its_batch_is_sent_writes_nothing(subject, together, admin):
    subject.client.get(subject.stack_id)  # the worker knows the key
    revoke = partial(admin.execute, b"UPDATE stackmgr.api_keys SET revoked_at = now()")
    body = configuration(name="of a revoked key")
    made = together([partial(subject.client.create, body, key=f"{n}") for n in range(3)], revoke)
    assert [response.status_int for response in made] == [401] * 3
    names = b"SELECT name FROM stackmgr.stacks WHERE name = 'of a revoked key'"
    assert admin.execute(names).fetchall() == []


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
