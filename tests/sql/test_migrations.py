"""Migrations: applied once, in order, one run at a time, each file atomically."""

import os
import re
import subprocess
import sys
import time
from contextlib import ExitStack, nullcontext
from unittest.mock import Mock
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from stackmgr.errors import CommandError
from stackmgr.operate import keys, migrations, preflight
from stackmgr.operate.operator import operating
from tests.support.clusters import limit_sessions, new_database
from tests.support.waiting import eventually

WAITING = b"SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = %s"
EXISTS = b"SELECT to_regclass('stackmgr.half') IS NOT NULL"
EMPTY = """SELECT $x$;$$;$x$, ';' AS "a;b" -- ;\n;"""
READS_LOCKED = re.compile(
    rb"ADD (CONSTRAINT|CHECK|FOREIGN)(?!.* NOT VALID$)|SET NOT NULL| TYPE |INDEX (?!CONCURRENTLY)", re.DOTALL
)
DEADLOCK = """
DO $$ BEGIN IF nextval('public.attempts') = 1 THEN RAISE deadlock_detected; END IF; END $$;
SELECT pg_sleep(1.5);
"""
FAILING = """
SET LOCAL ROLE stackmgr_owner;
CREATE TABLE stackmgr.half (id uuid);
SELECT 1 / 0;
"""


def applied(url: str) -> list[int]:
    with psycopg.connect(url, cursor_factory=psycopg.RawCursor) as connection:
        return sorted(migrations.applied_versions(connection))


def wait_for(connection: psycopg.Connection, url: str, number: int) -> None:
    name = conninfo_to_dict(url)["dbname"]
    eventually(lambda: connection.execute(WAITING, [name]).fetchone() == (number,))


def test_the_files_are_numbered_without_a_gap(add):
    versions = [migration.version for migration in migrations.available()]
    assert versions == list(range(1, len(versions) + 1))
    [path] = add(more=EMPTY)
    path.rename(path.with_name("3_more.sql"))
    with pytest.raises(CommandError, match=r"3_more\.sql of this release is not named NNNN_slug\.sql"):
        migrations.available()


def test_no_later_file_reads_a_table_that_it_has_locked():
    parts = [part.text for migration in migrations.available()[1:] for part in migration.parts]
    assert [text for text in parts if READS_LOCKED.search(text)] == []


def test_second_run_waits_for_the_first(server_url):
    with new_database(server_url) as empty_url, psycopg.connect(empty_url, autocommit=True) as admin:
        admin.execute(b"SELECT pg_advisory_lock(4663001)")
        environ = os.environ | {"STACKMGR_DATABASE_URL": empty_url}
        given = {"env": environ, "stdout": subprocess.PIPE, "text": True}
        runs = [subprocess.Popen([sys.executable, "-m", "stackmgr", "migrate"], **given) for _ in range(2)]
        wait_for(admin, empty_url, 2)
        admin.execute(b"SELECT pg_advisory_unlock(4663001)")
        printed = sorted(run.communicate(timeout=60)[0].splitlines() for run in runs)
    everything = [f"applied {migration}" for migration in migrations.available()]
    assert printed == [[*everything, "the schema is up to date"], ["the schema is up to date"]]


def test_a_session_that_has_the_lock_is_named(own_url, server_url, monkeypatch):
    monkeypatch.setattr(migrations, "_LIMIT_WAIT_FOR_RUN", b"SET lock_timeout = '300ms'")
    with ExitStack() as sessions:
        others = [psycopg.connect(url, autocommit=True) for url in (server_url, *[own_url] * 4)]
        for other in others:
            sessions.callback(other.close)
            other.execute(b"SET application_name = 'a report'")
        for other in others[:3]:
            other.execute(b"SELECT pg_advisory_lock_shared(4663001)")
        others[4].execute(b"SELECT pg_advisory_lock(1)")
        others[3].pgconn.send_query(b"SELECT pg_advisory_lock(4663001)")
        named = [rf"pid {each.info.backend_pid} \(postgres a report, idle, [^)]*\)+" for each in others[1:3]]
        with pytest.raises(CommandError, match=f"has the lock .* blocked by {', '.join(named)}$"):
            migrations.apply(own_url)


def test_a_deadlock_is_repeated_whatever_limits_sessions_have(own_url, add, monkeypatch):
    with psycopg.connect(own_url, autocommit=True) as connection:
        connection.execute(b"CREATE SEQUENCE public.attempts")  # which a rollback does not set back
    limit_sessions(own_url)
    [path] = add(third=DEADLOCK)
    monkeypatch.setattr(migrations, "_PAUSE_SECONDS", (1.5,))
    reported: list[str] = []
    assert [str(each) for each in migrations.apply(own_url, report=reported.append)] == [path.stem]
    assert f"{path.stem} did not get its locks" in reported[0]


def test_a_database_of_other_files_is_named(own_url):
    """An earlier commit had files of the same numbers, and more of them."""
    with psycopg.connect(own_url, autocommit=True) as admin:
        admin.execute(b"UPDATE stackmgr.schema_migrations SET checksum = sha256(checksum)")
        columns = b"INSERT INTO stackmgr.schema_migrations (version, slug, checksum)"
        admin.execute(columns + b" VALUES (12, 'append_only_vacuum', sha256('12'))")
    message = "migration 0001_schema is not the one that this database has: migrate a new database and copy"
    with pytest.raises(CommandError, match=message):
        migrations.apply(own_url)
    assert any(message in problem for problem in preflight.examine(own_url).problems)


@pytest.mark.parametrize("has_roles", [True, False])
def test_anothers_history_is_named(bare_database_url, has_roles):
    roles = b"CREATE ROLE stackmgr_app; CREATE ROLE stackmgr_owner;" if has_roles else b""
    with psycopg.connect(bare_database_url, autocommit=True) as admin:
        admin.execute(roles + b"CREATE SCHEMA stackmgr; CREATE TABLE stackmgr.schema_migrations (id integer)")
    message = "another service has the table stackmgr.schema_migrations: name another database"
    with pytest.raises(CommandError, match=message):
        migrations.apply(bare_database_url)
    if has_roles:
        assert message in preflight.examine(bare_database_url).problems[-1]


@pytest.mark.parametrize(("time", "left"), [("infinity", {(None,)}), ("-infinity", {("-infinity",)})])
def test_a_key_that_expires_never_is_migrated(own_url, time, left):
    """Before the constraints, `infinity` made every list of keys fail."""
    with psycopg.connect(own_url, autocommit=True) as admin:
        for table in ("api_keys", "managers", "manager_holds", "stacks"):
            admin.execute(f"ALTER TABLE stackmgr.{table} DROP CONSTRAINT {table}_times_have_a_date".encode())
        admin.execute(b"ALTER TABLE stackmgr.manager_erasures DROP COLUMN keys")
        admin.execute(b"DELETE FROM stackmgr.schema_migrations WHERE version IN (3, 4)")
        with operating(own_url) as operator:
            issued = [keys.create(operator, str(uuid4())) for _ in range(2)]
            keys.revoke(operator, issued[0].key_id)
        admin.execute(b"UPDATE stackmgr.api_keys SET expires_at = %s", [time])
        problem = pytest.raises(CommandError, match="api_keys_times_have_a_date")
        with problem if time == "-infinity" else nullcontext():  # which was no key before and is none now
            migrations.apply(own_url)
        assert {*admin.execute(b"SELECT expires_at::text FROM stackmgr.api_keys")} == left


def test_a_file_without_a_transaction_may_wait_for_others(own_url, add):
    limits = "current_setting('lock_timeout'), current_setting('statement_timeout')"
    unlimited = f"DO $$ BEGIN ASSERT ({limits}) = ('0', '0'); END $$"
    add(before=EMPTY, unlimited=f"-- transaction: none\n{unlimited}", after=EMPTY)
    reported: list[str] = []
    with psycopg.connect(own_url) as other:
        other.execute(b"LOCK TABLE stackmgr.stacks IN ACCESS SHARE MODE")
        time.sleep(0.3)
        assert len(migrations.apply(own_url, report=reported.append)) == 3
        pid = other.info.backend_pid
    [report] = reported
    assert f"_unlimited runs without a transaction: blocked by pid {pid} (" in report


def test_grants_that_fail_are_no_migration_and_a_newer_database_is_rejected(own_url, add, monkeypatch):
    [path] = add(newer=EMPTY)
    monkeypatch.setattr(migrations, "_restore_privileges", Mock(side_effect=psycopg.Error("none")))
    with pytest.raises(CommandError, match=rf"^none \(applied before that: {path.stem}\)"):
        migrations.apply(own_url)
    path.unlink()
    with pytest.raises(CommandError, match=rf"{path.name[:4]}, which version .* run 'stackmgr migrate' of"):
        migrations.apply(own_url)


def test_failed_migration_leaves_nothing_and_a_lost_session_leads_to_another_run(own_url, add):
    before, (second, third, half) = applied(own_url), add(second=EMPTY, third=EMPTY, half=FAILING)
    message = rf"{half.stem}: division by zero \(applied before that: {second.stem}, {third.stem}\)"
    with pytest.raises(CommandError, match=message):
        migrations.apply(own_url)
    assert len(applied(own_url)) == len(before) + 2
    with psycopg.connect(own_url) as admin:
        assert admin.execute(EXISTS).fetchone() == (False,)
    half.write_text(FAILING.replace("/ 0", "/ 1"))
    assert [str(migration) for migration in migrations.apply(own_url)] == [half.stem]
    add(lost="SELECT pg_terminate_backend(pg_backend_pid());")
    with pytest.raises(CommandError, match=r"_lost: terminating .*: run 'stackmgr migrate' again$"):
        migrations.apply(own_url)


def test_a_database_in_another_encoding_is_rejected(server_url):
    with new_database(server_url, encoding="LATIN1") as url:
        with pytest.raises(CommandError, match="the encoding of this database is LATIN1, and must be UTF8"):
            migrations.apply(url)
        assert applied(url) == []
        assert "the database's encoding is not UTF8" in preflight.examine(url).problems[0]
