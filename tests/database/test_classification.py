"""Which status a failure of the database ends in: by the phase it happened in and its SQLSTATE, nothing else.

The failures are the server's own where it can be brought to them, and else raised in it by a trigger.
"""

import re
import subprocess
import time
from types import SimpleNamespace

import pytest

from stackmgr import paths
from stackmgr.database import pool
from stackmgr.database.retries import must_close, should_retry
from stackmgr.database.statements import Statement
from stackmgr.errors import DatabaseError
from stackmgr.limits import LONGEST_KEY_BYTES
from tests.database.subject import POOL_SIZE
from tests.support.examples import configuration
from tests.support.waiting import eventually


@pytest.fixture
def sabotage(admin):
    """Return a function that makes the next inserts into a table fail; when deferred, at the commit."""
    made = []

    def prepare(table: str, sqlstate: str, times: int, *, deferred: bool = False) -> None:
        timing = b"CONSTRAINT TRIGGER sabotage AFTER" if deferred else b"TRIGGER sabotage BEFORE"
        options = b"DEFERRABLE INITIALLY DEFERRED" if deferred else b""
        made.append(table)
        level = b"WARNING" if sqlstate.startswith("01") else b"EXCEPTION"
        # A sequence is not rolled back: it counts the attempts.
        admin.execute(
            b"""
            CREATE SEQUENCE public.attempts;
            GRANT USAGE ON SEQUENCE public.attempts TO public;
            CREATE FUNCTION public.sabotage() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
                IF nextval('public.attempts') <= %d THEN
                    RAISE %s USING ERRCODE = '%s', MESSAGE = 'secret', DETAIL = 'secret';
                END IF;
                RETURN NEW;
            END $$;
            CREATE %s INSERT ON stackmgr.%s %s FOR EACH ROW EXECUTE FUNCTION public.sabotage();
            """
            % (times, level, sqlstate.encode(), timing, table.encode(), options)
        )

    yield prepare
    for table in made:
        admin.execute(b"DROP TRIGGER sabotage ON stackmgr.%s" % table.encode())
        admin.execute(b"DROP FUNCTION public.sabotage; DROP SEQUENCE public.attempts")


@pytest.mark.parametrize(("sqlstate", "times", "outcome"), [
    ("40001", 3, (200, 4)), ("40001", 4, (500, 4)), ("40P01", 3, (200, 4)),
    ("0A000", 99, (500, 1)), ("25006", 1, (200, 2)), ("26000", 1, (200, 1)),
    ("26000", 99, (500, 4)), ("57P01", 1, (500, 1)), ("54000", 1, (500, 1)), ("23514", 1, (500, 1)),
])  # fmt: skip
def test_failed_write_is_retried_only_if_safe(subject, sabotage, sqlstate, times, outcome):
    status, attempts = outcome
    before = subject.client.get(subject.stack_id).json
    sabotage("stack_revisions", sqlstate, times)
    for _ in range(1 + times // 99):  # what will never be supported is so for a connection that knows it too
        assert subject.operations()["update"]() == status
        assert subject.client.statements == ["stack_update"] * attempts
    assert (subject.client.get(subject.stack_id).json == before) == (status == 500)
    subject.assert_complete()


def test_only_a_too_long_key_is_blamed(subject, sabotage):
    sabotage("creation_receipts", "54000", 2)
    for length, status in ((LONGEST_KEY_BYTES + 1, 400), (LONGEST_KEY_BYTES, 500), (LONGEST_KEY_BYTES, 201)):
        assert subject.client.create(configuration(), key="k" * length).status_int == status


def test_failed_commit_after_a_pooler_is_retried(subject, sabotage):
    assert subject.operations()["update"]() == 200
    subject.database._pool._pool[-1].execute(b"DEALLOCATE ALL")
    sabotage("stack_revisions", "40001", 1, deferred=True)
    assert subject.operations()["update"]() == 200
    assert subject.client.statements == ["stack_update"] * 2
    subject.assert_complete()


@pytest.mark.parametrize("table", [b"api_keys", b"stacks"])
def test_failed_read_of_a_known_key_is_503(subject, admin, table):
    """It fails as its verification does: the server does not report which of them."""
    admin.execute(b"ALTER TABLE stackmgr.%s RENAME TO hidden" % table)
    try:
        assert subject.operations()["get"]() == 503
        assert [subject.lines[-1][name] for name in ("verifier", "code")] == ["service_unavailable"] * 2
    finally:
        admin.execute(b"ALTER TABLE stackmgr.hidden RENAME TO %s" % table)
    subject.assert_complete()


def test_read_only_server_is_still_read(make_subject, server, admin):
    """With the choice of a server in the URL that the pages print."""
    page = (paths.directory("deploy") / "stackmgr.env.example").read_text()
    subject = make_subject(f"{server.url()}&{re.findall(r'target_session_attrs=[a-z-]+', page)[0]}")
    admin.execute(b"ALTER DATABASE stackmgr SET default_transaction_read_only = on")
    subject.database.drain()
    try:
        assert subject.operations()["update"]() == 500
        assert subject.client.statements == ["stack_update", "stack_update"]
        assert {subject.operations()[name]() for name in ("get", "list") * POOL_SIZE} == {200}
    finally:
        admin.execute(b"SET default_transaction_read_only = off")
        admin.execute(b"ALTER DATABASE stackmgr RESET default_transaction_read_only")
    # The connections made meanwhile are found out and replaced, all of them, when a write comes.
    eventually(lambda: time.monotonic() - subject.database._drained_at > pool.MIN_DRAIN_INTERVAL)
    assert subject.operations()["update"]() == 200
    subject.assert_complete()


@pytest.mark.parametrize("sqlstate", ["01000", "01S00"])
def test_other_warning_fails_no_write(subject, sabotage, sqlstate, caplog):
    sabotage("stack_revisions", sqlstate, 4)
    backends = set(subject.backends())
    for name, status in (("create", 201), ("update", 200)) * 2:
        assert subject.operations()[name]() == status
    assert caplog.messages == [f"PostgreSQL warns: {sqlstate} of exec_stmt_raise"]
    assert set(subject.backends()) == backends
    names = {"severity": "WARNUNG", "severity_nonlocalized": "WARNING", "sqlstate": sqlstate}
    subject.database._pool._pool[-1]._notice(SimpleNamespace(source_function="another", **names))
    assert caplog.messages[1:] == [f"PostgreSQL warns: {sqlstate} of another"]


def test_a_result_type_that_a_migration_changes_fails_no_read(subject, admin):
    statement = Statement("test_changed", b"SELECT * FROM public.changed", (), writes=False)
    admin.execute(b"CREATE TABLE public.changed AS SELECT 1; GRANT SELECT ON public.changed TO PUBLIC")
    try:
        assert [subject.database.session().rows(statement, {}) for _ in range(2)] == [[(1,)]] * 2
        admin.execute(b"ALTER TABLE public.changed ADD COLUMN added text")
        assert subject.database.session().rows(statement, {}) == [(1, None)]
    finally:
        admin.execute(b"DROP TABLE public.changed")


def test_restored_schema_fails_no_later_request(subject, server):
    run_as, url = server.run_as, server.url()
    dump = server.folder / "stackmgr.dump"
    for _ in range(2 * POOL_SIZE):
        assert {call() for call in subject.operations().values()} == {200, 201}
    for program, *options in (
        ("pg_dump", "-Fc", "-n", "stackmgr", "-f", dump, url),
        ("pg_restore", "--clean", "--if-exists", "--single-transaction", "-d", url, dump),
    ):
        subprocess.run([server.programs / program, *options], check=True, cwd="/", **run_as)
    for _ in range(2 * POOL_SIZE):
        assert {call() for call in subject.operations().values()} == {200, 201}
        assert subject.create_stack() == subject.stack_id
    subject.assert_complete()


# What failed, how often a read is tried in all, how often a write, and whether the connection is closed.
TABLE = [
    ("40001", 4, 4, False), ("40P01", 4, 4, False), ("0A000", 2, 2, True), ("25006", 2, 2, True),
    ("08000", 2, 1, True), ("08006", 2, 1, True), ("57P01", 2, 1, True), ("57P02", 2, 1, True),
    ("57P03", 2, 1, True), ("57P05", 2, 1, True), ("unconfirmed", 2, 1, True),
    ("connection_lost", 2, 1, True), ("deadline", 1, 1, True), ("no_connection", 1, 1, False),
    ("unsupported", 1, 1, False), ("receipt_vanished", 1, 1, False), ("40002", 1, 1, False),
    ("42501", 1, 1, False), ("53100", 1, 1, False), ("54000", 1, 1, False), ("55P03", 1, 1, False),
    ("57014", 1, 1, False), ("23505", 1, 1, False), ("XX000", 1, 1, False),
]  # fmt: skip


@pytest.mark.parametrize(("failed", "reads", "writes", "closed"), TABLE, ids=[row[0] for row in TABLE])
def test_failure_decides_retries_and_closing(failed, reads, writes, closed):
    reason = not failed[0].isdigit() and failed != "XX000"
    # A statement that is not supported keeps its SQLSTATE.
    sqlstate = {"unsupported": "0A000", "unconfirmed": "01000"}.get(failed) if reason else failed
    failure = DatabaseError(failed if reason else "rejected", sqlstate=sqlstate)
    for attempts in range(1, 6):
        assert should_retry(failure, writes=False, attempts=attempts) == (attempts < reads)
        assert should_retry(failure, writes=True, attempts=attempts) == (attempts < writes)
    assert must_close(failure) == closed
