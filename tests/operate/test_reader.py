"""The read-only commands with logins, schemas and databases that do not suit them."""

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from stackmgr.operate import migrations
from stackmgr.operate.connection import reading
from tests.support.clusters import new_database


@pytest.fixture
def run_reader(command, monkeypatch: pytest.MonkeyPatch):
    """Return a function that runs a command which reads, on the database of a URL."""

    def run(url: str):
        monkeypatch.setenv("STACKMGR_DATABASE_URL", url)
        return command("keys", "list")

    return run


def assert_rejected(outcome, message: str) -> None:
    assert outcome.status == 1
    assert outcome.out == ""
    assert message in outcome.err
    assert len(outcome.err.splitlines()) == 1


def test_without_a_database_url(run_reader):
    assert_rejected(run_reader(""), "STACKMGR_DATABASE_URL is not set")


def test_without_a_server(run_reader):
    ran = run_reader("postgresql://somebody:hush@127.0.0.1:1/x")
    assert_rejected(ran, "the database of STACKMGR_DATABASE_URL cannot be reached")
    assert "hush" not in ran.err


def test_without_a_schema(run_reader, server_url):
    with new_database(server_url) as url:
        assert_rejected(run_reader(url), "run 'stackmgr migrate' first")


def test_with_a_schema_of_an_earlier_release(run_reader, server_url):
    with new_database(server_url) as url:
        migrations.apply(url)
        with psycopg.connect(url) as admin:
            admin.execute(b"ALTER TABLE stackmgr.api_keys DROP COLUMN label CASCADE")
        assert_rejected(run_reader(url), "run 'stackmgr migrate' first")


def test_with_a_login_that_may_not_assume_the_reader(run_reader, saved_url):
    with psycopg.connect(saved_url, autocommit=True) as admin:
        admin.execute(b"CREATE ROLE stranger LOGIN")
        try:
            assert_rejected(
                run_reader(make_conninfo(saved_url, user="stranger")), "GRANT stackmgr_reader TO stranger"
            )
        finally:
            admin.execute(b"DROP ROLE stranger")


def test_with_a_login_that_may_do_nothing_but_assume_the_reader(run_reader, saved_url):
    with psycopg.connect(saved_url, autocommit=True) as admin:
        admin.execute(b"CREATE ROLE looker LOGIN NOINHERIT IN ROLE stackmgr_reader")
        admin.execute(b"ALTER ROLE looker SET statement_timeout = '1ms'")
        admin.execute(b"ALTER ROLE looker SET default_transaction_isolation = 'read committed'")
        admin.execute(b"ALTER ROLE looker SET DateStyle = 'German'")
        admin.execute(b"ALTER ROLE looker SET search_path = 'nowhere'")
        try:
            assert run_reader(make_conninfo(saved_url, user="looker")).status == 0
        finally:
            admin.execute(b"DROP ROLE looker")


def test_the_transaction_writes_nothing_and_keeps_its_snapshot(saved_url):
    with reading(saved_url) as reader:
        settings = ("transaction_read_only", "transaction_isolation", "role")
        run = reader._connection.execute
        found = [run("SELECT current_setting(%s)", [name]).fetchone() for name in settings]
    assert found == [("on",), ("repeatable read",), ("stackmgr_reader",)]
