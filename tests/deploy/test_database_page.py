"""One manager is recovered by the commands of deploy/DATABASE.md, after an erasure or a client's mistake."""

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from stackmgr.errors import CommandError
from stackmgr.operate import erasure, keys
from stackmgr.operate.operator import operating
from tests.deploy.dba import sql
from tests.deploy.runbook import blocks
from tests.deploy.scenes import DEPLOY, Servers
from tests.operate.saved import MANAGER, MANAGER_ID, OTHER_MANAGER_ID, PRODUCTION, STACK

SECTION = "Recovery of one manager"
COPY_MANAGER, RECOVER_MANAGER = blocks(SECTION, DEPLOY / "DATABASE.md")
TABLES = ("managers", "stacks", "stack_revisions", "creation_receipts")
# Without the hour of the last use.
KEYS = """
SELECT (key_digest, key_id, label, created_at, expires_at, revoked_at, quota_id)::text
FROM stackmgr.api_keys WHERE external_id = %s
"""
OVERWRITE = """
WITH made AS (
    INSERT INTO stackmgr.stack_revisions
    SELECT (jsonb_populate_record(revisions, jsonb_build_object(
        'revision_id', gen_random_uuid(), 'revision_number', revision_number + 1, 'name', 'lost'
    ))).*
    FROM stackmgr.stack_revisions AS revisions
    JOIN stackmgr.stacks AS stacks USING (manager_id, stack_id, revision_number)
    WHERE stack_id = %s
    RETURNING *
)
UPDATE stackmgr.stacks AS stacks
SET (revision_id, revision_number, name) = (made.revision_id, made.revision_number, made.name)
FROM made WHERE stacks.manager_id = made.manager_id AND stacks.stack_id = made.stack_id
"""


def saved(url: str, manager_id: str = MANAGER_ID) -> dict[str, set[tuple[Any, ...]]]:
    rows = "SELECT {0}::text FROM stackmgr.{0} WHERE manager_id = %s"
    found = {name: set(sql(url, rows.format(name), manager_id)) for name in TABLES}
    return found | {"api_keys": set(sql(url, KEYS, MANAGER))}


def names(url: str) -> list[str]:
    query = "SELECT name FROM stackmgr.stacks WHERE manager_id = %s ORDER BY stack_id"
    return [name for (name,) in sql(url, query, MANAGER_ID)]


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
        keys.create(operator, MANAGER, quota=keys.Quota(100, 1))
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
    url, copied = shell.source, saved(shell.variables["COPY"])
    with operating(url) as operator, operating(url) as other:
        keys.revoke(operator, PRODUCTION)
        revoked = saved(url)["api_keys"] - copied["api_keys"]

        def hold(done: int, *_: object) -> None:
            if done == 8:
                erasure.hold(other, MANAGER_ID, "recovery")

        with pytest.raises(CommandError):
            erasure.erase(operator, MANAGER_ID, MANAGER, hold)
        assert [len(rows) for rows in saved(url).values()] == [0, 1, 0, 0, 3]
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
    sql(url, OVERWRITE, STACK)
    sql(url, "DELETE FROM stackmgr.stack_revisions WHERE revision_number = 1 AND stack_id = %s", STACK)
    for revert in ("", "-v revert=no "):
        shell.run(RECOVER_MANAGER.replace("-v folder", f"{revert}-v folder"))
        assert names(url) == ["lost", "Income"]
    # A copy that fails leaves nothing of an older one to put back.
    shell.run(f"mkdir {MANAGER}; cp {MANAGER_ID}/* {MANAGER}")
    with pytest.raises(AssertionError, match="the copy has no manager of this manager id"):
        shell.run(COPY_MANAGER, MANAGER_ID=MANAGER)
    with pytest.raises(AssertionError, match=r"managers\.tsv: No such file"):
        shell.run(RECOVER_MANAGER, MANAGER_ID=MANAGER)
    shell.run(RECOVER_MANAGER.replace("-v folder", "-v revert=yes -v folder"))
    assert names(url) == ["Growth", "Income"]
    live, copied = saved(url), saved(copy)
    assert [len(live[table] - copied[table]) for table in live] == [0, 1, 2, 0, 0]
    assert [len(copied[table] - live[table]) for table in live] == [0, 1, 0, 0, 0]
    for name, old, new in (("stack_revisions", "Income", "I"), ("creation_receipts", r"\b20\d\d-", "1999-")):
        file = shell.folder / MANAGER_ID / f"{name}.tsv"
        unchanged = file.read_text()
        file.write_text(re.sub(old, new, unchanged))
        with pytest.raises(AssertionError, match="has another history"):
            shell.run(RECOVER_MANAGER)
        file.write_text(unchanged)
    assert saved(url) == live
