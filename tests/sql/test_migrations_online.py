"""Migrations while the service uses the tables: no request fails, and what waits is reported."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import psycopg
import pytest

from stackmgr.errors import CommandError
from stackmgr.operate import migrations
from tests.support.psql import audit
from tests.support.server import running_service
from tests.support.waiting import eventually
from tests.support.workload import Workload, new_managers

CLIENTS = 6
OWNED = "SET LOCAL ROLE stackmgr_owner;\n"
ADD_COLUMN = f"{OWNED} ALTER TABLE stackmgr.stacks ADD COLUMN noted_at timestamptz;"
# How a later release begins to roll out a column that clients will write.
ADD_TO_REVISIONS = "ALTER TABLE stackmgr.stack_revisions ADD COLUMN noted_at timestamptz;"
# How a later release gives a large table a constraint: two files, of which only the first locks it.
CHANGE, NAME = f"{OWNED} ALTER TABLE stackmgr.stack_revisions", "stack_revisions_request_id_is_bounded"
ADD_CONSTRAINT = f"{CHANGE} ADD CONSTRAINT {NAME} CHECK (length(request_id) <= 255) NOT VALID;"
VALIDATE_CONSTRAINT = f"{CHANGE} VALIDATE CONSTRAINT {NAME};"
CREATE_INDEX = """
-- Repeatable; the first statement also removes the invalid index of a run that failed.
-- transaction: none
DROP INDEX CONCURRENTLY IF EXISTS stackmgr.stack_revisions_request;
CREATE INDEX CONCURRENTLY stack_revisions_request ON stackmgr.stack_revisions (request_id);
"""
FRESH = "DO $$ BEGIN ASSERT (current_user, current_setting('lock_timeout')) = (session_user, '250ms'); END $$"
COLUMNS = b"""
SELECT count(*) FROM information_schema.columns WHERE table_schema = 'stackmgr' AND column_name = 'noted_at'
"""
VALID = b"SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('stackmgr.stack_revisions_request')"
VALIDATED = b"SELECT convalidated FROM pg_constraint WHERE conname = 'stack_revisions_request_id_is_bounded'"
IS_CARRIED_ON = b"""
SELECT bool_and(to_jsonb(revisions) - 'created_at' @> to_jsonb(stacks) - 'created_at')
FROM stackmgr.stacks JOIN stackmgr.stack_revisions AS revisions USING (manager_id, stack_id, revision_number)
"""


@pytest.fixture
def workload(own_url: str) -> Iterator[Workload]:
    """Clients that read and write without pause until the test is over.  Fails if one request fails."""
    with running_service(own_url) as service:
        workload = Workload(1, new_managers(own_url), service.port)
        workload.start(CLIENTS)
        yield workload
        workload.stop()
    assert {operation.status for operation in workload.operations} <= {200, 201, 404, 409}


def one(url: str, query: bytes):
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(query).fetchone()
    return None if row is None else row[0]


def test_waiting_migration_fails_no_request(own_url, add, workload):
    [path] = add(noted=ADD_COLUMN)
    reports = []
    with ThreadPoolExecutor() as threads:
        with psycopg.connect(own_url) as dump:  # until its end, as pg_dump
            dump.execute(b"LOCK TABLE stackmgr.stacks IN ACCESS SHARE MODE")
            migrated = threads.submit(migrations.apply, own_url, report=reports.append)
            eventually(lambda: len(reports) == 3)
            assert one(own_url, COLUMNS) == 0
        assert [str(migration) for migration in migrated.result(60)] == [path.stem]
    assert one(own_url, COLUMNS) == 1
    assert len(workload.operations) > 100


def test_migration_gives_up_after_its_time(own_url, add, monkeypatch):
    slept, reports = [], []
    # After nine reports the time is over, also without a pause.
    clock = SimpleNamespace(monotonic=lambda: sum(slept) + len(reports) // 9 * 99, sleep=slept.append)
    monkeypatch.setattr(migrations, "time", clock)
    monkeypatch.setattr(migrations, "_LIMIT_WAIT_FOR_TABLE", b"SET lock_timeout = '50ms'")
    [path] = add(noted=ADD_COLUMN)
    with psycopg.connect(own_url) as other:
        other.execute(f"LOCK TABLE stackmgr.stacks\nIN ACCESS SHARE MODE /* {'x' * 200} */".encode())
        pid = other.info.backend_pid
        with pytest.raises(CommandError, match=f"{path.stem}: canceling statement due to lock timeout"):
            migrations.apply(own_url, wait_seconds=31.5, report=reports.append)
    assert slept == [0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
    plans = [*(f"retrying in {pause:g} s" for pause in slept), "giving up, run it again later or with --wait"]
    assert [report.rpartition("; ")[2] for report in reports] == plans
    assert f"pid {pid} (postgres, idle in transaction" in reports[-1]
    begins = "LOCK TABLE stackmgr.stacks IN ACCESS SHARE MODE /* "
    assert f": {begins:x<120}); giving up" in reports[-1]
    assert one(own_url, COLUMNS) == 0


@pytest.mark.parametrize(("texts", "holds"), [
    ({"bounded": ADD_CONSTRAINT, "validated": VALIDATE_CONSTRAINT}, VALIDATED),
    ({"indexed": CREATE_INDEX, "later": FRESH}, VALID),
    ({"noted": ADD_COLUMN + ADD_TO_REVISIONS}, IS_CARRIED_ON),
], ids=["a constraint, not valid at first", "an index, concurrently", "a column"])  # fmt: skip
def test_what_a_later_release_adds_blocks_no_request(own_url, add, workload, texts, holds):
    added = add(**texts)
    assert [str(migration) for migration in migrations.apply(own_url)] == [path.stem for path in added]
    assert migrations.apply(own_url) == []
    served = len(workload.operations)
    eventually(lambda: len(workload.operations) > served + 50)
    workload.stop()
    assert one(own_url, holds) is True
    assert audit(own_url) == ""
