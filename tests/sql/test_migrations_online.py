"""Migrations while the service and pg_dump use the tables: no request fails, and what waits is reported."""

import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from stackmgr import paths
from stackmgr.errors import CommandError
from stackmgr.operate import erasure, migrations
from stackmgr.operate.connection import operating
from tests.support.clusters import new_database
from tests.support.server import running_service
from tests.support.waiting import eventually
from tests.support.workload import Workload, new_managers

CLIENTS = 6
GROWTH = paths.directory("deploy") / "GROWTH.md"

ADD_COLUMN = """
SET LOCAL ROLE stackmgr_owner;
ALTER TABLE stackmgr.stacks ADD COLUMN noted_at timestamptz;
"""
# How a later release gives a large table a constraint: two files, of which only the first locks it.
ADD_CONSTRAINT = """
SET LOCAL ROLE stackmgr_owner;
ALTER TABLE stackmgr.stack_revisions
    ADD CONSTRAINT stack_revisions_request_id_is_bounded CHECK (length(request_id) <= 255) NOT VALID;
"""
VALIDATE_CONSTRAINT = """
SET LOCAL ROLE stackmgr_owner;
ALTER TABLE stackmgr.stack_revisions VALIDATE CONSTRAINT stack_revisions_request_id_is_bounded;
"""
CREATE_INDEX = """
-- Repeatable; the first statement also removes the invalid index of a run that failed.
-- transaction: none
DROP INDEX CONCURRENTLY IF EXISTS stackmgr.stack_revisions_request;
CREATE INDEX CONCURRENTLY stack_revisions_request ON stackmgr.stack_revisions (request_id);
"""
AS_LOGIN = "DO $$ BEGIN ASSERT current_user = session_user; END $$;"

# Data enough, in the first table, that pg_dump, whose output is not read, stops there and keeps its locks.
FILL = b"""
INSERT INTO stackmgr.api_key_quota_slots (quota_id, slot)
SELECT gen_random_uuid(), 1 FROM generate_series(1, 40000)
"""
# It locks all tables before its first COPY.
DUMP_IS_STOPPED = b"""
SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid)
WHERE application_name = 'pg_dump' AND relation = 'stackmgr.stacks'::regclass AND granted
    AND query LIKE 'COPY %' AND wait_event = 'ClientWrite'
"""
COLUMNS = b"""
SELECT count(*) FROM information_schema.columns WHERE table_schema = 'stackmgr' AND column_name = 'noted_at'
"""
VALIDITY = (
    b"SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('stackmgr.stack_revisions_request')"
)
IS_VALIDATED = (
    b"SELECT convalidated FROM pg_constraint WHERE conname = 'stack_revisions_request_id_is_bounded'"
)
PARTITIONS = b"""
SELECT inhparent::regclass::text, count(*) FROM pg_inherits WHERE inhparent IN (
    'stackmgr.stack_revisions'::regclass, 'stackmgr.creation_receipts'::regclass
)
GROUP BY inhparent ORDER BY 1
"""
# What differs between the schema of the migrations and that of partitions: nothing but the parts.
SCHEMA = b"""
SELECT conname, conrelid::regclass::text, pg_get_constraintdef(oid), obj_description(conrelid, 'pg_class')
FROM pg_constraint
WHERE conrelid IN ('stackmgr.stack_revisions'::regclass, 'stackmgr.creation_receipts'::regclass)
    AND contype IN ('c', 'f', 'p')
UNION ALL SELECT relname, relacl::text, NULL, NULL
FROM pg_class
WHERE oid IN ('stackmgr.stack_revisions'::regclass, 'stackmgr.creation_receipts'::regclass)
UNION ALL SELECT viewname, definition, NULL, NULL
FROM pg_views
WHERE schemaname = 'stackmgr'
UNION ALL SELECT attname, attrelid::regclass::text, attstorage::text || coalesce(attacl::text, ''),
    col_description(attrelid, attnum)
FROM pg_attribute
WHERE attrelid IN ('stackmgr.stack_revisions'::regclass, 'stackmgr.creation_receipts'::regclass)
    AND attnum > 0
UNION ALL SELECT relname, indrelid::regclass::text, amname || indkey::text, indisprimary::text
FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid JOIN pg_am ON pg_am.oid = relam
WHERE indrelid IN ('stackmgr.stack_revisions'::regclass, 'stackmgr.creation_receipts'::regclass)
ORDER BY 1, 2, 3
"""
PART_OPTIONS = b"""
SELECT DISTINCT relkind, reloptions FROM pg_class
WHERE oid IN (SELECT inhrelid FROM pg_inherits) AND relkind = 'r' AND relnamespace = 'stackmgr'::regnamespace
"""
INCOMPLETE = b"""
SELECT count(*) FROM stackmgr.stacks
WHERE revision_number <> (
    SELECT count(*) FROM stackmgr.stack_revisions AS revisions
    WHERE (revisions.manager_id, revisions.stack_id) = (stacks.manager_id, stacks.stack_id)
)
OR 1 <> (
    SELECT count(*) FROM stackmgr.creation_receipts AS receipts
    WHERE (receipts.manager_id, receipts.stack_id) = (stacks.manager_id, stacks.stack_id)
)
"""
MANAGERS = b"SELECT manager_id::text, external_id::text FROM stackmgr.managers"
LOST = b"""
SELECT saved::text FROM stackmgr.stack_revisions_old AS saved
EXCEPT SELECT saved::text FROM stackmgr.stack_revisions AS saved
UNION ALL (
    SELECT saved::text FROM stackmgr.creation_receipts_old AS saved
    EXCEPT SELECT saved::text FROM stackmgr.creation_receipts AS saved
)
"""


@pytest.fixture
def url(server_url: str) -> Iterator[str]:
    """A migrated database that a test may change."""
    with new_database(server_url) as url:
        migrations.apply(url)
        yield url


@pytest.fixture
def add(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return a function that adds files to a copy of the migrations, numbered on."""
    copy = tmp_path / "sql" / "migrations"
    shutil.copytree(paths.directory("sql") / "migrations", copy)
    directory = paths.directory
    monkeypatch.setattr(
        paths, "directory", lambda name: tmp_path / name if name == "sql" else directory(name)
    )

    def add(**texts: str) -> list[str]:
        version = migrations.available()[-1].version
        names = [f"{version + n:04d}_{slug}" for n, slug in enumerate(texts, 1)]
        for name, text in zip(names, texts.values(), strict=True):
            (copy / f"{name}.sql").write_text(text)
        return names

    return add


@pytest.fixture
def workload(url: str) -> Iterator[Workload]:
    """Clients that read and write without pause until the test is over."""
    with running_service(url) as service:
        workload = Workload(1, new_managers(url), lambda: service.port)
        workload.start(CLIENTS)
        yield workload
        workload.stop()


def one(url: str, query: bytes):
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(query).fetchone()
    return None if row is None else row[0]


def test_no_request_fails_while_a_migration_waits_for_pg_dump(url, add, workload, binaries):
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(FILL)
    [name] = add(noted=ADD_COLUMN)
    reports: list[str] = []
    waited = threading.Event()

    def report(text: str) -> None:
        reports.append(text)
        if len(reports) == 3:
            waited.set()

    # Where a user has many pipes, each new one is this small: less than the statements that create tables.
    dump = subprocess.Popen([binaries / "pg_dump", "--data-only", url], stdout=subprocess.PIPE, pipesize=4096)
    with ThreadPoolExecutor() as threads:
        try:
            eventually(lambda: one(url, DUMP_IS_STOPPED))
            migrated = threads.submit(migrations.apply, url, report=report)
            assert waited.wait(60)
            assert one(url, COLUMNS) == 0
        finally:
            dump.communicate()
        assert [str(migration) for migration in migrated.result(60)] == [name]
    workload.stop()
    assert dump.returncode == 0
    assert one(url, COLUMNS) == 1
    assert re.fullmatch(
        rf"migration {name} did not get its locks: blocked by pid \d+ \(pg_dump, active, \d+ s old: COPY "
        r".+\); retrying in 0\.5 s",
        reports[0],
    )
    statuses = {operation.status for operation in workload.operations}
    assert len(workload.operations) > 100
    assert statuses <= {200, 201, 404, 409}


def test_a_migration_gives_up_after_the_time_it_was_given_and_changes_nothing(url, add):
    [name] = add(noted=ADD_COLUMN)
    reports: list[str] = []
    with psycopg.connect(url) as other:
        other.execute(b"LOCK TABLE stackmgr.stacks IN ACCESS SHARE MODE")
        pid = other.info.backend_pid
        with pytest.raises(CommandError, match=f"{name}: canceling statement due to lock timeout"):
            migrations.apply(url, wait_seconds=1, report=reports.append)
    assert [report.rpartition("; ")[2] for report in reports] == [
        "retrying in 0.5 s",
        "giving up, run it again later or with --wait",
    ]
    assert f"pid {pid} (unnamed, idle in transaction" in reports[1]
    assert one(url, COLUMNS) == 0


def test_a_constraint_is_added_not_valid_and_then_validated(url, add, workload):
    names = add(bounded=ADD_CONSTRAINT, validated=VALIDATE_CONSTRAINT)
    assert [str(migration) for migration in migrations.apply(url)] == names
    workload.stop()
    assert one(url, IS_VALIDATED) is True
    assert {operation.status for operation in workload.operations} <= {200, 201, 404, 409}


def test_an_index_is_created_concurrently_and_blocks_no_request(url, add, workload):
    names = add(indexed=CREATE_INDEX, later=AS_LOGIN)
    assert [str(migration) for migration in migrations.apply(url)] == names
    assert migrations.apply(url) == []
    workload.stop()
    assert one(url, VALIDITY) is True
    assert {operation.status for operation in workload.operations} <= {200, 201, 404, 409}


def test_an_index_that_failed_is_removed_and_created_by_the_next_run(url, add):
    names = add(indexed=CREATE_INDEX)
    with psycopg.connect(url) as other, ThreadPoolExecutor() as threads:
        other.execute(b"INSERT INTO stackmgr.managers SELECT gen_random_uuid(), gen_random_uuid(), 'other'")
        other.execute(b"LOCK TABLE stackmgr.stack_revisions IN ROW EXCLUSIVE MODE")
        migrating = threads.submit(migrations.apply, url)
        eventually(lambda: one(url, VALIDITY) is False)
        one(url, b"SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE query LIKE 'CREATE INDEX CONC%'")
        with pytest.raises(CommandError, match=f"{names[0]}: canceling statement due to user request"):
            migrating.result(30)
    assert one(url, VALIDITY) is False
    assert [str(migration) for migration in migrations.apply(url)] == names
    assert one(url, VALIDITY) is True


def test_the_history_is_partitioned_by_the_page_while_the_service_runs(url, workload, binaries, monkeypatch):
    for name, value in {"LONGEST_REQUEST_SECONDS": 0, "_MANY": 2, "_VACUUM_AGAIN_SECONDS": 0}.items():
        monkeypatch.setattr(erasure, name, value)
    line = re.search(r"^ {4}(psql .* deploy/postgresql/partition\.sql)$", GROWTH.read_text(), re.MULTILINE)
    with psycopg.connect(url, autocommit=True) as admin:
        before = admin.execute(SCHEMA).fetchall()
        command = line[1].replace("-d stackmgr ", f"-d '{url}' ")
        subprocess.run(
            ["/bin/sh", "-euc", command],
            cwd=paths.directory("deploy").parent,
            env={"PATH": f"{binaries}:/usr/bin:/bin"},
            check=True,
            timeout=300,
        )
        served = len(workload.operations)
        eventually(lambda: len(workload.operations) > served + 50)
        workload.stop()
        assert {operation.status for operation in workload.operations} <= {200, 201, 404, 409}
        assert admin.execute(PARTITIONS).fetchall() == [
            ("stackmgr.creation_receipts", 16),
            ("stackmgr.stack_revisions", 16),
        ]
        assert admin.execute(SCHEMA).fetchall() == before
        [(_, options)] = admin.execute(PART_OPTIONS).fetchall()
        assert "autovacuum_freeze_min_age=0" in options
        assert 201 in {operation.status for operation in workload.operations[served:]}
        assert admin.execute(INCOMPLETE).fetchone() == (0,)
        assert admin.execute(LOST).fetchall() == []
        admin.execute(b"DROP TABLE stackmgr.stack_revisions_old, stackmgr.creation_receipts_old")
        managers = admin.execute(MANAGERS).fetchall()
        assert migrations.apply(url) == []
        with operating(url) as operator, psycopg.connect(url) as older:
            older.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            older.execute(MANAGERS)
            waits: list[str] = []

            def report(_done: int, _total: int, wait: str) -> None:
                if "may still read" in wait:
                    waits.append(wait)
                    older.rollback()

            for manager_id, external_id in managers:
                assert erasure.erase(operator, manager_id, external_id, report)
            assert len(waits) == 1
        for table in ("stacks", "stack_revisions", "creation_receipts"):
            assert admin.execute(f"TABLE stackmgr.{table}".encode()).fetchall() == []
