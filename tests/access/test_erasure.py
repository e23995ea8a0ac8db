"""`stackmgr managers erase`: deletes all rows of one manager, logs it, and changes no other manager."""

import re
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from unittest.mock import create_autospec, patch
from uuid import uuid4

import psycopg
import pytest

from stackmgr import paths
from stackmgr.access import managers
from stackmgr.access.verifiers import Identity
from stackmgr.database.session import Session
from stackmgr.operate import erasure
from stackmgr.operate.operator import Operator, operating
from tests.operate.saved import REBIND
from tests.support.examples import COLUMN_NAMES, configuration

pytestmark = pytest.mark.usefixtures("erase_at_once")
STACK = f"""
INSERT INTO stackmgr.stacks (manager_id, stack_id, revision_id, revision_number, {COLUMN_NAMES})
SELECT %s, stack_id, revision_id, 1, {COLUMN_NAMES} FROM stackmgr.stacks LIMIT 1
""".encode()
RECORD = b"""
SELECT stacks, revisions, receipts, finished_at IS NOT NULL, begun_by = session_user
FROM stackmgr.manager_erasures WHERE manager_id = %s
"""
USE_QUOTA = b"""
WITH limited AS (
    UPDATE stackmgr.api_keys SET quota_id = key_id, quota_limit = 1000, quota_seconds = 1
    WHERE external_id = %s RETURNING quota_id
),
slots AS (INSERT INTO stackmgr.api_key_quota_slots (quota_id, slot) SELECT quota_id, 1 FROM limited)
INSERT INTO stackmgr.api_key_quota_queues (quota_id, slot, granted_at) SELECT quota_id, 1, '{}' FROM limited
RETURNING quota_id
"""
ERASED = b"""
INSERT INTO stackmgr.manager_erasures (manager_id, external_id, begun_at, finished_at)
VALUES (%s, %s, '2020-01-01', now()), (%s, %s, '2020-01-01', now())
"""
# A vacuum against wraparound passes over the pages of all that are left.
FROZEN = b"""
SELECT bool_and(age(relfrozenxid) < age(receipts.xmin))
FROM pg_class, stackmgr.creation_receipts AS receipts
WHERE pg_class.oid = 'stackmgr.creation_receipts'::regclass
"""
PLANS = b"SELECT current_setting('enable_seqscan') || current_setting('enable_bitmapscan')"


@pytest.fixture
def busy_manager(client, manager):
    [first, *_] = client.page().json["items"]
    for _ in range(2):
        client.update(first["id"], {"name": "other"})
    return manager


@pytest.fixture
def erase(database_url):
    with operating(database_url) as operator:
        yield partial(erasure.erase, operator)


def test_all_rows_are_deleted_and_counted(busy_manager, command, admin, row_counts, make_client):
    manager_id, external_id = busy_manager
    make_client().create(configuration())
    [(quota_id,)] = admin.execute(USE_QUOTA, [external_id]).fetchall()
    admin.execute(REBIND.encode(), [external_id])
    # Those of another manager, and of an earlier erasure, after which the manager was put back.
    admin.execute(ERASED, [str(uuid4()), str(uuid4()), manager_id, str(uuid4())])
    before, others = row_counts(), rows_without(admin, f"{manager_id}|{external_id}|{quota_id}")
    result = command("managers", "erase", external_id, "--confirm", external_id, "--json")
    assert result.json == {"manager_id": manager_id, "stacks": 3, "revisions": 5, "receipts": 3, "keys": 1}
    after = row_counts()
    gone = {name: before[name] - after[name] for name in before if before[name] != after[name]}
    assert gone == {
        "stacks": 3, "stack_revisions": 5, "creation_receipts": 3, "managers": 1, "manager_rebindings": 1,
        "api_keys": 1, "api_key_quota_slots": 1, "api_key_quota_queues": 1,
    }  # fmt: skip
    assert admin.execute(RECORD, [manager_id]).fetchone() == (3, 5, 3, True, True)
    query = "SELECT external_id::text FROM stackmgr.manager_erasures WHERE manager_id = %s"
    assert admin.execute(query, [manager_id]).fetchone() == (external_id,)
    assert rows_without(admin, f"{manager_id}|{external_id}|{quota_id}") == others


def rows_without(admin, ids):
    tables = admin.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'stackmgr'").fetchall()
    query = "SELECT t::text FROM stackmgr.{} AS t WHERE t::text !~ %s ORDER BY 1"
    return {name: admin.execute(query.format(name).encode(), [ids]).fetchall() for (name,) in tables}


def test_erasure_needs_the_confirmed_id(client, busy_manager, command, contents):
    before = contents()
    result = command("managers", "erase", busy_manager[0], "--confirm", busy_manager[0])
    assert result.status == 1
    assert "the manager has another external id, or none" in result.err
    assert contents() == before
    assert client.page().status_int == 200


def test_an_interrupted_erasure_is_continued(client, busy_manager, command, admin, monkeypatch):
    manager_id, external_id = busy_manager
    earlier = [command("keys", "issue", "--external-id", external_id, "--json").json["key_id"]]
    admin.execute(b"UPDATE stackmgr.api_keys SET revoked_at = '2020-01-01' WHERE key_id = %s", earlier)
    erase = ("managers", "erase", manager_id, "--confirm", external_id)
    monkeypatch.setattr(erasure, "_BATCH", 2)
    rows, handler = Operator.rows, signal.signal(signal.SIGINT, signal.SIG_IGN)

    def interrupted(operator, statement, parameters):
        if statement.name == "manager_erasure_delete_stacks":
            [(plans,)] = operator._connection.execute(PLANS)
            assert plans == "offoff"  # checks of foreign keys pass over deleted rows
            signal.raise_signal(signal.SIGINT)
        return rows(operator, statement, parameters)

    with patch.object(Operator, "rows", interrupted):
        ran = command(*erase)
    signal.signal(signal.SIGINT, handler)
    assert (ran.status, ran.out) == (1, "")
    assert ran.err.splitlines()[-1] == f"stackmgr: interrupted: continue with stackmgr {' '.join(erase)}"
    assert client.page().status_int == 401
    revoked = b"SELECT revoked_at = '2020-01-01' FROM stackmgr.api_keys WHERE key_id = %s"
    assert admin.execute(revoked, earlier).fetchone() == (True,)
    assert admin.execute(RECORD, [manager_id]).fetchone() == (0, 5, 3, False, True)
    other = command(*erase[:-1], str(uuid4()))
    assert "the manager has another external id, or none" in other.err
    assert command(*erase).status == 0
    assert admin.execute(RECORD, [manager_id]).fetchone() == (3, 5, 3, True, True)


def test_rows_are_deleted_in_heap_order(busy_manager, database_url, row_counts):
    before = row_counts()
    with operating(database_url) as operator:
        # The updates have moved rows of the stacks.
        rows = list(operator.iterate(erasure._ROWS, {"manager_id": busy_manager[0]}))
        for step, position, _ in rows:
            erasure._delete_batch(operator, str(uuid4()), step, [position])
    listed = [(step, *map(int, position.strip("()").split(","))) for step, position, _ in rows]
    assert listed == sorted(listed)
    assert [step for step, *_ in listed] == [1] * 3 + [2] * 5 + [3] * 3
    assert row_counts() == before


def test_receipts_are_vacuumed_once_none_can_read(busy_manager, make_client, database_url, monkeypatch):
    make_client().create(configuration())
    monkeypatch.setattr(erasure, "_MANY", 3)
    monkeypatch.setattr(erasure, "_BATCH", 1)
    vacuum = create_autospec(Operator.vacuum_receipts, side_effect=Operator.vacuum_receipts)
    monkeypatch.setattr(Operator, "vacuum_receipts", vacuum)
    reports = []
    with operating(database_url) as operator, psycopg.connect(database_url) as older:
        older.execute(b"SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        older.execute(b"SELECT")

        def pause(_: Operator, seconds: float) -> None:
            if seconds == erasure._VACUUM_AGAIN_SECONDS:
                assert "waiting" in reports[-1][2]
                older.rollback()

        monkeypatch.setattr(Operator, "pause", pause)
        assert erasure.erase(operator, *busy_manager, lambda *report: reports.append(report)) == (3, 5, 3, 1)
        assert older.execute(FROZEN).fetchone() == (True,)
    waits = [report for report in reports if "may still read" in report[2]]
    assert [(done, total) for done, total, _ in waits] == [(8, 11)]
    assert vacuum.call_count == 2


def test_rows_without_their_manager_are_erased(busy_manager, erase, admin, rows_of):
    def is_recorded(*_: object) -> None:
        assert admin.execute(RECORD, [busy_manager[0]]).fetchone()[3:] == (False, True)

    admin.execute(b"DELETE FROM stackmgr.managers WHERE manager_id = %s", [busy_manager[0]])
    assert erase(*busy_manager, is_recorded) is None
    into = b"INSERT INTO stackmgr.manager_erasures (manager_id, external_id, finished_at)"
    admin.execute(into + b" VALUES (%s, %s, now())", busy_manager)
    assert erase(*busy_manager, is_recorded)
    assert rows_of(busy_manager[0]) == [0, 0, 0, 0]
    assert admin.execute(RECORD, [busy_manager[0]]).fetchone() == (3, 5, 3, True, True)


@patch.object(erasure, "_MANY", 4)
@patch.object(Operator, "vacuum_receipts", None)  # not for so few stacks
def test_rows_that_appear_meanwhile_are_deleted(busy_manager, make_client, erase, admin, rows_of):
    make_client().create(configuration())

    def write(done: int, *_: object) -> None:
        if done == 11:
            admin.execute(STACK, [busy_manager[0]])

    assert erase(*busy_manager, write).stacks == 4
    assert rows_of(busy_manager[0]) == [0, 0, 0, 0]


def test_progress_is_printed_each_five_seconds(monkeypatch, capsys):
    progress = erasure.Progress()
    for moment, remark in ((100, ""), (104.9, ""), (105, ""), (106, "waiting"), (110.9, ""), (111, "")):
        monkeypatch.setattr(erasure, "time", SimpleNamespace(monotonic=lambda: moment))  # noqa: B023
        progress(int(moment), 1000, remark)
    printed = re.findall(r"(?m)^(\d+ of about 1,000 rows deleted|waiting)$", capsys.readouterr().err)
    assert [line[:7] for line in printed] == ["100 of ", "105 of ", "waiting", "111 of "]


def test_erasure_waits_as_long_as_nginx_and_then_as_long_as_each_batch(busy_manager, erase, monkeypatch):
    monkeypatch.undo()
    passed, slept, delete = [0.0], [], erasure._delete_batch
    monkeypatch.setattr(erasure, "_BATCH", 2)
    monkeypatch.setattr(erasure, "time", SimpleNamespace(monotonic=lambda: sum(passed)))
    monkeypatch.setattr(erasure, "_delete_batch", lambda *given: (delete(*given), passed.append(2.0)))
    monkeypatch.setattr(Operator, "pause", lambda _, seconds: (slept.append(seconds), passed.append(50.0)))
    assert erase(*busy_manager, lambda *_: None)
    nginx = (paths.directory("deploy") / "nginx.conf").read_text()
    [limit] = {int(seconds) for seconds in re.findall(r"proxy_read_timeout (\d+)s;", nginx)}
    assert limit <= erasure.LONGEST_REQUEST_SECONDS == slept[0]
    assert slept[1:] == [2.0] * (2 + 3 + 2)  # no batch has rows of two tables


def test_key_issued_meanwhile_is_a_new_managers(busy_manager, new_key, erase, database, admin):
    manager_id, external_id = busy_manager

    def bind_again(done: int, *_: object) -> None:
        if not done:
            new_key(external_id)
            managers.bind(database.session(), Identity(external_id, external_id))

    assert erase(manager_id, external_id, bind_again).keys == 1
    found = "SELECT manager_id::text FROM stackmgr.managers WHERE external_id = %s"
    [(bound,)] = admin.execute(found, [external_id]).fetchall()
    assert bound != manager_id
    valid = "SELECT count(*) FROM stackmgr.api_keys WHERE external_id = %s AND revoked_at IS NULL"
    assert admin.execute(valid, [external_id]).fetchone() == (1,)


@pytest.mark.parametrize("race", [
    ("api_key_verify", lambda client, _: client.create(configuration(), key="new"), 401),
    ("stack_create", lambda client, _: client.create(configuration(), key="new"), 201),
    ("stack_create", lambda client, _: client.create(configuration(), key="key 0"), 200),
    ("api_key_verify", lambda client, stack: client.update(stack, {"name": "new"}), 401),
    ("stack_update", lambda client, stack: client.update(stack, {"name": "new"}), 200),
], ids=["create", "created", "retry that found its key used", "update", "updated"])  # fmt: skip
def test_concurrent_write_is_erased_too(client, busy_manager, rows_of, erase, monkeypatch, race):
    last_statement, send, status = race
    [first, *_] = client.page().json["items"]
    client.change_worker()
    rows, erased, waits, ended = Session.rows, [], threading.Event(), threading.Event()

    def pause(*_):
        waits.set()
        assert ended.wait(60)

    def run(session, statement, parameters, **rest):
        found = rows(session, statement, parameters, **rest)
        if statement.name == last_statement and not erased:
            erased.append(threads.submit(erase, *busy_manager, erasure.Progress()))
            assert waits.wait(60)
        return found

    monkeypatch.setattr(Operator, "pause", pause)
    monkeypatch.setattr(Session, "rows", run)
    with ThreadPoolExecutor() as threads:
        try:
            assert send(client, first["id"]).status_int == status
        finally:
            ended.set()
    assert erased[0].result()
    assert rows_of(busy_manager[0]) == [0, 0, 0, 0]
    assert client.page().status_int == 401


@pytest.mark.parametrize("half", ["external_id", "identity_id"])
def test_first_request_binds_after_an_erasure(database, admin, monkeypatch, half):
    external_id, other_id = str(uuid4()), str(uuid4())
    other = dict.fromkeys(("manager_id", "external_id", "identity_id"), other_id) | {half: external_id}
    meanwhile = {
        "manager_find": b"INSERT INTO stackmgr.managers (manager_id, external_id, identity_id)"
        b" VALUES (%(manager_id)s, %(external_id)s, %(identity_id)s)",
        "manager_insert": b"DELETE FROM stackmgr.managers WHERE manager_id = %(manager_id)s::uuid",
    }
    rows = Session.rows

    def run(session, statement, parameters, **rest):
        found = rows(session, statement, parameters, **rest)
        if command := meanwhile.pop(statement.name, None):
            admin.execute(command, other)
        return found

    monkeypatch.setattr(Session, "rows", run)
    bound = managers.bind(database.session(), Identity(external_id, external_id))
    saved = b"SELECT manager_id::text FROM stackmgr.managers WHERE external_id = %s"
    assert admin.execute(saved, [external_id]).fetchall() == [(bound,)]
    assert bound != other_id
