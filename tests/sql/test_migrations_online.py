"""Migrations while the service and pg_dump use the tables: no request fails, and what waits is reported."""

import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from stackmgr import paths
from stackmgr.errors import CommandError
from stackmgr.operate import erasure, migrations, preflight
from stackmgr.operate.connection import operating
from tests.support.psql import audit
from tests.support.server import running_service
from tests.support.waiting import eventually
from tests.support.workload import Workload, new_managers

CLIENTS = 6
GROWTH = paths.directory("deploy") / "GROWTH.md"

ADD_COLUMN = """
SET LOCAL ROLE stackmgr_owner;
ALTER TABLE stackmgr.stacks ADD COLUMN noted_at timestamptz;
"""
# How a later release begins to roll out a column that clients will write.
ADD_TO_REVISIONS = "ALTER TABLE stackmgr.stack_revisions ADD COLUMN noted_at timestamptz;"
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
WAITS_LONGER_THAN_FOR_A_TABLE = b"""
SELECT count(*) FROM pg_stat_activity
WHERE query LIKE 'CREATE INDEX CONCURRENTLY %' AND clock_timestamp() - query_start > '0.5 s'
"""
VALIDITY = (
    b"SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('stackmgr.stack_revisions_request')"
)
IS_VALIDATED = (
    b"SELECT convalidated FROM pg_constraint WHERE conname = 'stack_revisions_request_id_is_bounded'"
)
IS_CARRIED_ON = b"""
SELECT bool_and(to_jsonb(revisions) - 'created_at' @> to_jsonb(stacks) - 'created_at')
FROM stackmgr.stacks JOIN stackmgr.stack_revisions AS revisions USING (manager_id, stack_id, revision_number)
"""
PARTITIONS = b"""
SELECT inhparent::regclass::text, count(*) FROM pg_inherits WHERE inhparent IN (
    'stackmgr.stack_revisions'::regclass, 'stackmgr.creation_receipts'::regclass
)
GROUP BY inhparent ORDER BY 1
"""
# Of the tables and views, what `stackmgr check` does not compare.
SCHEMA = b"""
SELECT relname, obj_description(pg_class.oid, 'pg_class'), attname, col_description(attrelid, attnum)
FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid AND attnum > 0
WHERE relnamespace = 'stackmgr'::regnamespace
    AND (relname IN ('stack_revisions', 'creation_receipts') OR relkind = 'v')
ORDER BY relname, attname
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


def test_waiting_migration_fails_no_request(own_url, add, workload, binaries):
    with psycopg.connect(own_url, autocommit=True) as admin:
        admin.execute(FILL)
    [path] = add(noted=ADD_COLUMN)
    reports: list[str] = []
    # Where a user has many pipes, each new one is this small: less than the statements that create tables.
    dump = subprocess.Popen(
        [binaries / "pg_dump", "--data-only", own_url], stdout=subprocess.PIPE, pipesize=4096
    )
    with ThreadPoolExecutor() as threads:
        try:
            eventually(lambda: one(own_url, DUMP_IS_STOPPED))
            migrated = threads.submit(migrations.apply, own_url, report=reports.append)
            eventually(lambda: len(reports) == 3)
            assert one(own_url, COLUMNS) == 0
        finally:
            dump.communicate()
        assert [str(migration) for migration in migrated.result(60)] == [path.stem]
    assert dump.returncode == 0
    assert one(own_url, COLUMNS) == 1
    assert re.fullmatch(
        rf"migration {path.stem} did not get its locks: blocked by pid \d+ \(postgres pg_dump, active, "
        r"\d+ s old: COPY .+\); retrying in 0\.5 s",
        reports[0],
    )
    assert len(workload.operations) > 100


def test_migration_gives_up_after_its_time(own_url, add, monkeypatch):
    # However long each attempt takes, its time has passed after the second pause and not after the first.
    monkeypatch.setattr(migrations, "_PAUSE_SECONDS", (0.5, 1000.0))
    [path] = add(noted=ADD_COLUMN)
    reports: list[str] = []
    with psycopg.connect(own_url) as other:
        other.execute(b"LOCK TABLE stackmgr.stacks IN ACCESS SHARE MODE")
        pid = other.info.backend_pid
        with pytest.raises(CommandError, match=f"{path.stem}: canceling statement due to lock timeout"):
            migrations.apply(own_url, wait_seconds=500, report=reports.append)
    assert [report.rpartition("; ")[2] for report in reports] == [
        "retrying in 0.5 s",
        "giving up, run it again later or with --wait",
    ]
    assert f"pid {pid} (postgres, idle in transaction" in reports[1]
    assert one(own_url, COLUMNS) == 0


@pytest.mark.parametrize(
    ("texts", "holds"),
    [
        ({"bounded": ADD_CONSTRAINT, "validated": VALIDATE_CONSTRAINT}, IS_VALIDATED),
        ({"indexed": CREATE_INDEX, "later": AS_LOGIN}, VALIDITY),
        ({"noted": ADD_COLUMN + ADD_TO_REVISIONS}, IS_CARRIED_ON),
    ],
    ids=["a constraint, not valid at first", "an index, concurrently", "a column"],
)
def test_what_a_later_release_adds_blocks_no_request(own_url, add, workload, texts, holds):
    added = add(**texts)
    assert [str(migration) for migration in migrations.apply(own_url)] == [path.stem for path in added]
    assert migrations.apply(own_url) == []
    served = len(workload.operations)
    eventually(lambda: len(workload.operations) > served + 50)
    workload.stop()
    assert one(own_url, holds) is True
    assert audit(own_url) == ""


SCRIPT = paths.directory("deploy") / "postgresql" / "partition.sql"
SESSIONS = b"SELECT wait_event FROM pg_stat_activity WHERE application_name = 'psql'"


def run_until_killed(url: str, binaries: Path, file: Path, *, in_exchange: bool) -> None:
    """Run a script that kills its psql, or kill it while it waits for a reader of the history."""
    with psycopg.connect(url) as reader, psycopg.connect(url, autocommit=True) as admin:
        reader.execute(b"SELECT FROM stackmgr.stack_revisions")
        psql = subprocess.Popen([binaries / "psql", "-Xq", "-d", url, "-f", file])
        eventually(lambda: psql.poll() is not None or ("PgSleep",) in admin.execute(SESSIONS).fetchall())
        if in_exchange:
            psql.kill()
        else:
            reader.rollback()
        assert psql.wait(60) == -9
        eventually(lambda: admin.execute(SESSIONS).fetchall() == [])


def kill_at_each_step(url: str, binaries: Path, folder: Path) -> None:
    """Begin to partition as often as the script has statements, and kill it after one more each time."""
    parts = [part.text for part in migrations.Migration(0, "", SCRIPT.read_bytes()).parts]
    file = folder / "killed.sql"
    for number in range(1, len(parts) + 1):
        file.write_bytes(b";\n".join(parts[:number]) + b";\n\\! kill -9 $PPID\n")
        run_until_killed(url, binaries, file, in_exchange=number == len(parts))
    undo = [binaries / "psql", "-Xq", "-d", url, "-v", "undo=yes", "-f", SCRIPT]
    assert subprocess.run(undo, check=True, capture_output=True).stderr == b""
    assert one(url, b"SELECT to_regclass('stackmgr.stack_revisions_new') IS NULL") is True


def test_history_is_partitioned_under_load(own_url, workload, binaries, monkeypatch, tmp_path):
    kill_at_each_step(own_url, binaries, tmp_path)
    for name, value in {"LONGEST_REQUEST_SECONDS": 0, "_MANY": 2, "_VACUUM_AGAIN_SECONDS": 0}.items():
        monkeypatch.setattr(erasure, name, value)
    line = re.search(r"^ {4}(psql .* deploy/postgresql/partition\.sql)$", GROWTH.read_text(), re.MULTILINE)
    with psycopg.connect(own_url, autocommit=True) as admin:
        before = admin.execute(SCHEMA).fetchall()
        command = line[1].replace("-d stackmgr ", f"-d '{own_url}' ")
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
        assert admin.execute(PARTITIONS).fetchall() == [
            ("stackmgr.creation_receipts", 16),
            ("stackmgr.stack_revisions", 16),
        ]
        assert admin.execute(SCHEMA).fetchall() == before
        assert 201 in {operation.status for operation in workload.operations[served:]}
        assert audit(own_url) == ""
        assert admin.execute(LOST).fetchall() == []
        admin.execute(b"DROP TABLE stackmgr.stack_revisions_old, stackmgr.creation_receipts_old")
        findings = preflight.examine(own_url, thorough=True)
        assert [each for each in findings.problems + findings.warnings if "release" in each] == []
        managers = admin.execute(MANAGERS).fetchall()
        assert migrations.apply(own_url) == []
        with operating(own_url) as operator, psycopg.connect(own_url) as older:
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


def test_a_file_without_a_transaction_waits_for_older_ones(own_url, add):
    add(noted=ADD_COLUMN, indexed=CREATE_INDEX)
    with ThreadPoolExecutor() as threads, psycopg.connect(own_url) as older:
        older.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ  # which keeps its snapshot
        older.execute(VALIDITY)
        migrated = threads.submit(migrations.apply, own_url)
        eventually(lambda: migrated.done() or one(own_url, WAITS_LONGER_THAN_FOR_A_TABLE))
        older.rollback()
        assert len(migrated.result()) == 2
