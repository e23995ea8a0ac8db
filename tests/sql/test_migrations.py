"""Migrations: applied once, in order, one run at a time, each file atomically.

The schema has few files: what happens to later ones is tested with files of the tests.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from stackmgr import paths
from stackmgr.errors import CommandError
from stackmgr.operate import migrations
from tests.support.clusters import new_database
from tests.support.waiting import eventually

WAITING = b"SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = %s"
EXISTS = b"SELECT to_regclass(%s) IS NOT NULL"

SECOND = """
SET LOCAL ROLE stackmgr_owner;
CREATE TABLE stackmgr.second (id uuid);
"""
DEADLOCK = """
DO $$ BEGIN IF nextval('public.attempts') = 1 THEN RAISE deadlock_detected; END IF; END $$;
"""
FAILING = """
SET LOCAL ROLE stackmgr_owner;
CREATE TABLE stackmgr.half (id uuid);
SELECT 1 / 0;
"""


@pytest.fixture
def empty_url(server_url: str) -> Iterator[str]:
    """A connection string to a database to which nothing was applied."""
    with new_database(server_url) as url:
        yield url


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of two migrations that a test may change: the schema's first file, and 0002_second."""
    copy = tmp_path / "sql" / "migrations"
    copy.mkdir(parents=True)
    shutil.copy(min((paths.directory("sql") / "migrations").glob("*.sql")), copy)
    (copy / "0002_second.sql").write_text(SECOND)
    monkeypatch.setattr(paths, "directory", lambda name: tmp_path / name)
    return copy


def applied(url: str) -> list[int]:
    with psycopg.connect(url, cursor_factory=psycopg.RawCursor) as connection:
        return sorted(migrations.applied_versions(connection))


def wait_for(connection: psycopg.Connection, url: str, number: int) -> None:
    """Return once *number* backends of the database at *url* wait for a lock."""
    name = psycopg.conninfo.conninfo_to_dict(url)["dbname"]
    eventually(lambda: connection.execute(WAITING, [name]).fetchone() == (number,))


def test_the_files_are_numbered_without_a_gap():
    versions = [migration.version for migration in migrations.available()]
    assert versions == list(range(1, len(versions) + 1))


def test_a_file_with_an_invalid_name_is_reported(folder):
    (folder / "3_more.sql").touch()
    with pytest.raises(CommandError, match=r"3_more\.sql of this release is not named NNNN_slug\.sql"):
        migrations.available()


def test_a_second_run_finds_nothing_to_do(empty_url):
    assert migrations.apply(empty_url) == migrations.available()
    assert migrations.apply(empty_url) == []


def test_of_two_runs_at_once_one_applies_and_the_other_waits_and_finds_nothing_to_do(empty_url):
    with psycopg.connect(empty_url, autocommit=True) as admin:
        admin.execute(b"SELECT pg_advisory_lock(4663001)")
        runs = [
            subprocess.Popen(
                [sys.executable, "-m", "stackmgr", "migrate"],
                env={**os.environ, "STACKMGR_DATABASE_URL": empty_url},
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(2)
        ]
        wait_for(admin, empty_url, 2)
        admin.execute(b"SELECT pg_advisory_unlock(4663001)")
        printed = sorted(run.communicate(timeout=60)[0].splitlines() for run in runs)
    everything = [f"applied {migration}" for migration in migrations.available()]
    assert printed == [[*everything, "the schema is up to date"], ["the schema is up to date"]]


def test_a_file_that_changed_after_it_was_applied_is_reported(empty_url, folder):
    migrations.apply(empty_url)
    with (folder / "0002_second.sql").open("a") as file:
        file.write("-- a comment\n")
    with pytest.raises(CommandError, match="0002_second differs from the one that was applied: install"):
        migrations.apply(empty_url)


def test_a_file_that_ends_in_a_deadlock_is_repeated(empty_url, folder, monkeypatch):
    migrations.apply(empty_url)
    with psycopg.connect(empty_url, autocommit=True) as connection:
        connection.execute(b"CREATE SEQUENCE public.attempts")  # which a rollback does not set back
    (folder / "0003_third.sql").write_text(DEADLOCK)
    monkeypatch.setattr(migrations, "_PAUSE_SECONDS", (0.0,))
    reported: list[str] = []
    assert [each.version for each in migrations.apply(empty_url, report=reported.append)] == [3]
    assert "0003_third did not get its locks" in reported[0]


def test_a_database_that_is_newer_than_the_code_is_rejected(empty_url, folder):
    migrations.apply(empty_url)
    (folder / "0002_second.sql").unlink()
    with pytest.raises(CommandError, match=r"0002, which version .* run 'stackmgr migrate' of the newer"):
        migrations.apply(empty_url)


def test_a_failed_migration_leaves_nothing_and_can_be_applied_once_it_is_fixed(empty_url, folder):
    failing = folder / "0003_half.sql"
    failing.write_text(FAILING)
    message = r"0003_half: division by zero \(applied before that: 0001_\w+, 0002_second\)"
    with pytest.raises(CommandError, match=message):
        migrations.apply(empty_url)
    assert applied(empty_url) == [1, 2]
    with psycopg.connect(empty_url) as admin:
        assert admin.execute(EXISTS, ("stackmgr.half",)).fetchone() == (False,)
    failing.write_text(FAILING.replace("/ 0", "/ 1"))
    assert [str(migration) for migration in migrations.apply(empty_url)] == ["0003_half"]


def test_a_database_in_another_encoding_is_rejected(server_url):
    with new_database(server_url, encoding="LATIN1") as url:
        with pytest.raises(CommandError, match="the encoding of this database is LATIN1, and must be UTF8"):
            migrations.apply(url)
        assert applied(url) == []


def test_psql_reads_the_files_and_makes_the_same_schema(empty_url, database_url, binaries):
    files = sorted((paths.directory("sql") / "migrations").glob("*.sql"))
    command = [binaries / "psql", "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", "--single-transaction"]
    subprocess.run([*command, *(f"--file={path}" for path in files), empty_url], check=True)
    assert schema_of(empty_url, binaries) == schema_of(database_url, binaries)


def schema_of(url: str, binaries: Path) -> list[str]:
    """Return what pg_dump says of a schema, but for the lines that are different each time."""
    dumped = subprocess.run(
        [binaries / "pg_dump", "--schema-only", "--schema=stackmgr", url],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return [
        line for line in dumped.stdout.splitlines() if not line.startswith(("\\restrict", "\\unrestrict"))
    ]


@pytest.mark.parametrize("end", [b"COMMIT", b"ROLLBACK"], ids=["succeeds", "fails"])
@pytest.mark.parametrize("attributes", ["SUPERUSER", "CREATEROLE"])
def test_two_databases_of_a_cluster_can_be_migrated_at_once(bare_cluster_url, attributes, end):
    """The roles belong to both: the second run waits for them, whether the first then succeeds or fails."""
    with (
        psycopg.connect(bare_cluster_url, autocommit=True) as admin,
        new_database(bare_cluster_url) as first,
        new_database(bare_cluster_url) as second,
    ):
        admin.execute(f"CREATE ROLE deployer LOGIN {attributes}".encode())
        for url in (first, second):
            name = psycopg.conninfo.conninfo_to_dict(url)["dbname"]
            admin.execute(f"GRANT CREATE ON DATABASE {name} TO deployer".encode())
        with (
            ThreadPoolExecutor() as threads,
            psycopg.connect(make_conninfo(first, user="deployer"), autocommit=True) as quicker,
        ):
            quicker.execute(b"BEGIN")
            quicker.execute(migrations.available()[0].text)
            slower = threads.submit(migrations.apply, make_conninfo(second, user="deployer"))
            wait_for(admin, second, 1)
            quicker.execute(end)
            assert slower.result() == migrations.available()
