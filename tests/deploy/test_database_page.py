"""One manager is recovered by the commands of deploy/DATABASE.md, after an erasure or a client's mistake."""

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import psycopg
import pytest

from stackmgr.errors import CommandError
from stackmgr.operate import erasure, keys
from stackmgr.operate import operator as operator_module
from stackmgr.operate.operator import operating, reading
from tests.deploy.dba import sql
from tests.deploy.runbook import blocks
from tests.deploy.scenes import DEPLOY, Servers
from tests.operate.saved import (
    MANAGER,
    MANAGER_ID,
    OTHER_MANAGER,
    OTHER_MANAGER_ID,
    PRODUCTION,
    QUIET_STACK,
    REBIND,
    STACK,
)
from tests.support.examples import ADDRESSES, allocation_text
from tests.support.waiting import eventually

SECTION = "Recovery of one manager"
COPY_MANAGER, RECOVER_MANAGER = blocks(SECTION, DEPLOY / "DATABASE.md")
TABLES = ("managers", "stacks", "stack_revisions", "creation_receipts", "manager_rebindings")
# Without the hour of the last use.
KEYS = """
SELECT (key_digest, key_id, label, created_at, expires_at, revoked_at, quota_id)::text
FROM stackmgr.api_keys WHERE external_id = %s
"""
QUOTAS = """
SELECT of_quota::text FROM stackmgr.api_key_quota_{} AS of_quota JOIN stackmgr.api_keys USING (quota_id)
WHERE external_id = %s
"""
CHANGE = """
WITH changed AS (
    UPDATE stackmgr.stacks
    SET revision_id = gen_random_uuid(), revision_number = revision_number + 1, {0} = '{1}'
    WHERE stack_id = %s RETURNING *
)
INSERT INTO stackmgr.stack_revisions (
    manager_id, stack_id, revision_number, revision_id, name, allocation, preset, identity_id, request_id
)
SELECT manager_id, stack_id, revision_number, revision_id, name, allocation, preset, 'client', 'overwrites'
FROM changed
"""
REVERTED = """
SELECT identity_id, request_id FROM stackmgr.stacks
JOIN stackmgr.stack_revisions USING (manager_id, stack_id, revision_id) WHERE manager_id = %s
"""
LOST_NAME = CHANGE.format("name", "lost")
CHANGES = ((STACK, LOST_NAME), (QUIET_STACK, CHANGE.format("preset", "hourly")),
    (STACK, CHANGE.format("allocation", allocation_text((ADDRESSES[0], 10000)))))  # fmt: skip
# Of a user in another country, whose login suits requests.
ELSEWHERE = {"PGDATESTYLE": "German", "PGTZ": "Asia/Tokyo", "PGCLIENTENCODING": "LATIN1"}
WAITS = "SELECT pid FROM pg_locks WHERE NOT granted"


def saved(url: str, manager_id: str = MANAGER_ID) -> dict[str, set[tuple[Any, ...]]]:
    rows = "SELECT {0}::text FROM stackmgr.{0} WHERE manager_id = %s"
    found = {name: set(sql(url, rows.format(name), manager_id)) for name in TABLES}
    found |= {name: set(sql(url, QUOTAS.format(name), MANAGER)) for name in ("slots", "queues")}
    return found | {"api_keys": set(sql(url, KEYS, MANAGER))}


def configurations(url: str) -> list[tuple[Any, ...]]:
    columns = "stack_id, name, allocation::text, preset"
    return sql(url, f"SELECT {columns} FROM stackmgr.stacks WHERE manager_id = %s ORDER BY 1", MANAGER_ID)


@pytest.fixture(scope="module")
def servers(binaries: Path) -> Iterator[Servers]:
    with closing(Servers(binaries)) as servers:
        yield servers


@pytest.fixture
def shell(servers: Servers, monkeypatch) -> Iterator[Servers]:
    """A DBA's shell with the operator's login, beside a copy of the database from before."""
    monkeypatch.setattr(erasure, "LONGEST_REQUEST_SECONDS", 0)
    servers.reset(SECTION)
    with operating(servers.source) as operator:
        for manager in (MANAGER, OTHER_MANAGER):
            keys.create(operator, manager, quota=keys.Quota(150, 1))
            sql(servers.source, REBIND, manager)
    sql(servers.source, CHANGE.format("name", "caf\u00e9 \u20ac"), QUIET_STACK)
    sql(servers.admin, "DROP DATABASE copy")
    sql(servers.admin, "CREATE DATABASE copy TEMPLATE stackmgr")
    copy = servers.variables["COPY"].replace("user=postgres", "user=stackmgr_operator")
    monkeypatch.setitem(servers.variables, "COPY", copy)
    monkeypatch.setitem(servers.variables, "PGUSER", "stackmgr_operator")
    others = saved(servers.source, OTHER_MANAGER_ID)["stack_revisions"]
    yield servers
    assert saved(servers.source, OTHER_MANAGER_ID)["stack_revisions"] == others


def test_half_erased_manager_is_recovered(shell, monkeypatch):
    monkeypatch.setattr(erasure, "_BATCH", 1)
    shell.run(COPY_MANAGER)
    files = (shell.folder / MANAGER_ID).glob("*.tsv")
    assert {file.stem: file.read_text().count("\n") - 1 for file in files} == {
        "managers": 1, "manager_rebindings": 1, "stacks": 2, "stack_revisions": 6, "creation_receipts": 2,
        "api_keys": 3, "api_key_quota_slots": 100, "api_key_quota_queues": 100,
    }  # fmt: skip
    url, copied = shell.source, saved(shell.variables["COPY"])
    with operating(url) as operator, operating(url) as other:
        keys.revoke(operator, PRODUCTION)
        revoked = saved(url)["api_keys"] - copied["api_keys"]

        def hold(done: int, *_: object) -> None:
            if done == 9:
                erasure.hold(other, MANAGER_ID, "recovery")

        with pytest.raises(CommandError):
            erasure.erase(operator, MANAGER_ID, MANAGER, hold)
        assert [len(rows) for rows in saved(url).values()] == [0, 1, 0, 0, 0, 100, 100, 3]
        erasure.release(other, MANAGER_ID)
        with pytest.raises(AssertionError, match="is not finished: hold the manager first"):
            shell.run(RECOVER_MANAGER)
        erasure.hold(other, MANAGER_ID, "recovery")
        shell.run(RECOVER_MANAGER)
        recovered = saved(url)
        # The key that was revoked after the copy stays revoked.
        assert recovered["api_keys"] - copied["api_keys"] == revoked
        assert recovered | {"api_keys": copied["api_keys"]} == copied
        with pytest.raises(psycopg.errors.ForeignKeyViolation):
            sql(url, "DELETE FROM stackmgr.managers WHERE manager_id = %s", MANAGER_ID)
        with pytest.raises(CommandError, match="is held since"):
            erasure.erase(operator, MANAGER_ID, MANAGER, hold)


def test_erased_and_overwritten_are_recovered(shell):
    url, copy = shell.source, shell.variables["COPY"]
    with operating(url) as operator:
        assert erasure.erase(operator, MANAGER_ID, MANAGER, lambda *_: None).stacks == 2
    for taken in (f"'{MANAGER}', 'new'", f"gen_random_uuid(), 'id:{MANAGER}'"):
        sql(url, f"INSERT INTO stackmgr.managers VALUES (gen_random_uuid(), {taken})")
        with pytest.raises(AssertionError, match="duplicate key value violates unique constraint"):
            shell.run(COPY_MANAGER + RECOVER_MANAGER)
        sql(url, "DELETE FROM stackmgr.managers WHERE identity_id IN ('new', %s)", f"id:{MANAGER}")
    shell.run(COPY_MANAGER + RECOVER_MANAGER)
    assert saved(url) == saved(copy)
    copied = configurations(copy)
    sql(url, "DELETE FROM stackmgr.stack_revisions WHERE revision_number = 1 AND stack_id = %s", STACK)
    for changes, others in ((CHANGES[:2], ("", "-v revert=no ")), (CHANGES[2:], ())):
        for stack, change in changes:
            sql(url, change, stack)
        changed = configurations(url)
        for other in others:
            shell.run(RECOVER_MANAGER.replace("-v folder", f"{other}-v folder"))
            assert configurations(url) == changed != copied
        shell.run(RECOVER_MANAGER.replace("-v folder", "-v revert=yes -v folder"))
        assert configurations(url) == copied
    assert sql(url, REVERTED, MANAGER_ID) == [("stackmgr_operator", "recover_manager.sql")] * 2
    # A copy that fails leaves nothing of an older one to put back.
    shell.run(f"mkdir {MANAGER}; cp {MANAGER_ID}/* {MANAGER}")
    with pytest.raises(AssertionError, match="the copy has no manager of this manager id"):
        shell.run(COPY_MANAGER, MANAGER_ID=MANAGER)
    with pytest.raises(AssertionError, match=r"managers\.tsv: No such file"):
        shell.run(RECOVER_MANAGER, MANAGER_ID=MANAGER)
    live, copied = saved(url), saved(copy)
    assert [len(live[table] - copied[table]) for table in live] == [0, 2, 6, 0, 0, 0, 0, 0]
    assert [len(copied[table] - live[table]) for table in live] == [0, 2, 0, 0, 0, 0, 0, 0]
    for name, old, new in (
        ("stack_revisions", "Income", "I"), ("creation_receipts", r"\b20\d\d-", "1999-"),
        ("stacks", r"\t4\t", "\t9\t"),
    ):  # fmt: skip
        file = shell.folder / MANAGER_ID / f"{name}.tsv"
        unchanged = file.read_text()
        file.write_text(re.sub(old, new, unchanged))
        with pytest.raises(AssertionError, match="has another history"):
            shell.run(RECOVER_MANAGER)
        file.write_text(unchanged)
    assert saved(url) == live
    # The account was given to another manager since, and that one erased.
    sql(url, "UPDATE stackmgr.managers SET external_id = gen_random_uuid() WHERE manager_id = %s", MANAGER_ID)
    sql(url, "TRUNCATE stackmgr.api_keys, stackmgr.api_key_quota_slots, stackmgr.api_key_quota_queues")
    shell.run(RECOVER_MANAGER)
    for table in ("api_keys", "api_key_quota_slots", "api_key_quota_queues"):
        assert sql(url, f"SELECT count(*) FROM stackmgr.{table}") == [(0,)], table


def test_no_setting_of_a_user_and_no_session_changes_a_recovery(shell):
    url = shell.source

    def run_behind(name: str, lock: str, limit: str, command: str, then: str = "SELECT") -> None:
        style = {} if then == LOST_NAME else {"PGDATESTYLE": "ISO, MDY"}
        given = ELSEWHERE | style | {"PGOPTIONS": f"-c {limit}=50ms -c search_path=nowhere"}
        other_url = shell.url(str(shell.folder / "source"), name)
        with psycopg.connect(other_url) as other, ThreadPoolExecutor() as threads:
            other.execute(lock.encode())
            running = threads.submit(shell.run, command, **given)
            eventually(lambda: running.done() or sql(url, WAITS))
            assert not running.done(), running.result()
            time.sleep(0.1)
            other.execute(then.replace("%s", f"'{STACK}'").encode())
            other.commit()
        running.result()

    # All in one snapshot, that of the beginning.
    run_behind("copy", "LOCK TABLE stackmgr.stacks", "statement_timeout", COPY_MANAGER, LOST_NAME)
    before = saved(url)
    others = "SELECT count(*) FROM stackmgr.manager_erasures WHERE manager_id <> %s"
    sql(url, "INSERT INTO stackmgr.manager_erasures VALUES (gen_random_uuid(), gen_random_uuid())")
    rows = "SELECT FROM stackmgr.{}" + f" WHERE manager_id = '{MANAGER_ID}' FOR UPDATE"
    run_behind("stackmgr", rows.format("managers"), "lock_timeout", RECOVER_MANAGER)
    with operating(url) as operator:
        erasure.erase(operator, MANAGER_ID, MANAGER, lambda *_: None)
    again = "UPDATE stackmgr.manager_erasures SET finished_at = NULL"
    with pytest.raises(AssertionError, match="is not finished"):
        run_behind("stackmgr", rows.format("manager_erasures"), "statement_timeout", RECOVER_MANAGER, again)
    sql(url, again.replace("NULL", "now()"))
    shell.run(RECOVER_MANAGER)
    assert (saved(url), sql(url, others, MANAGER_ID)) == (before, [(1,)])


def test_a_copy_knows_every_target_of_a_recovery(servers):
    script = (DEPLOY / "postgresql/copy_manager.sql").read_text()
    targets = "^recovery_target(_time|_xid|_lsn|_name)?$"
    [(names,)] = sql(servers.admin, "SELECT array_agg(name) FROM pg_settings WHERE name ~ %s", targets)
    assert {*re.findall(r"current_setting\('(\w+)'\)", script)} == {*names}
    removed, *_, last = re.findall(r"(\w+)\.tsv\n", script)
    assert (removed, last) == ("managers", "managers")  # whose file says that the others are complete


def test_another_database_of_the_same_name_is_not_changed(servers, monkeypatch):
    limits = []
    monkeypatch.setattr(operator_module, "time_limit", lambda: limits.append(30) or nullcontext())
    monkeypatch.setenv("SERVICE_DATABASE_URL", servers.variables["TARGET"])
    with reading(servers.source):
        pass
    with pytest.raises(CommandError, match="names another database"), operating(servers.source):
        pass
    assert limits == [30] * 3  # of each connection
