"""The service behind PgBouncer in transaction mode, as deploy/pgbouncer.ini sets it up."""

import re
import time
from collections.abc import Callable, Iterator
from configparser import ConfigParser
from contextlib import ExitStack
from uuid import uuid4

import psycopg
import pytest

from stackmgr import paths
from stackmgr.database.connection import DatabaseConnection, execution
from stackmgr.database.conninfo import completed_conninfo
from stackmgr.database.pool import Database
from stackmgr.database.session import SESSION_SECONDS
from stackmgr.database.statements import Statement
from stackmgr.errors import CommandError, DatabaseError
from stackmgr.operate import keys, migrations, preflight
from stackmgr.operate.operator import operating
from stackmgr.settings import Settings
from tests.support.nginx import require
from tests.support.pgbouncer import PROGRAM, make_pooled_login, pgbouncer

ECHO = Statement("echo", b"SELECT $1::text", ("text",), writes=False)
SESSION = Statement("session", b"SELECT pg_backend_pid()", (), writes=False)
LEFT_BEHIND = b"SELECT current_user, (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory')"


@pytest.fixture
def pooled(database_url: str) -> Iterator[Callable[..., str]]:
    require(str(PROGRAM) if PROGRAM.exists() else None, "pgbouncer")
    make_pooled_login(database_url)
    with ExitStack() as stack:
        yield lambda **given: stack.enter_context(pgbouncer(PROGRAM, database_url, **given))


def connect(url: str) -> DatabaseConnection:
    conninfo = completed_conninfo(url, "stackmgr_app", SESSION_SECONDS)
    return DatabaseConnection.connect(conninfo, autocommit=True)


def run(connection: DatabaseConnection, statement: Statement, **parameters: str):
    return connection.run(execution(statement, parameters), time.monotonic() + SESSION_SECONDS)


def test_releases_share_a_server_session(pooled):
    url = pooled()
    other_release = Statement("echo", b"SELECT $1::text || '!'", ("text",), writes=False)
    with connect(url) as ours, connect(url) as theirs, connect(url) as next_release:
        assert run(theirs, ECHO, text="theirs") == [("theirs",)]
        assert run(next_release, other_release, text="theirs") == [("theirs!",)]
        assert run(ours, ECHO, text="ours") == [("ours",)]


def test_lost_setting_serves_nothing(pooled, admin, caplog):
    name = admin.info.dbname.encode()
    admin.execute(b"ALTER ROLE stackmgr_service IN DATABASE " + name + b" SET jit = on")
    url = pooled()
    [problem] = preflight.examine(url).problems
    assert "requested: jit is on, not off. Behind a pooler" in problem
    database = Database(url, pool_size=1, deadline=1)
    database.open()
    with pytest.raises(DatabaseError, match="no_connection"):
        database.session().rows(SESSION, {})
    database.close()
    assert "jit is on, not off" in caplog.text


def test_later_session_has_silent_settings(pooled, admin):
    wanted = {"synchronous_commit": "on", "client_min_messages": "warning", "search_path": "pg_catalog"}
    login = b"ALTER ROLE stackmgr_service IN DATABASE " + admin.info.dbname.encode()
    with connect(pooled(default_pool_size="1")) as ours:
        [(before,)] = run(ours, SESSION)
        for name, other in zip(wanted, ("off", "error", "public"), strict=True):
            admin.execute(login + f" SET {name} = {other}".encode())
        admin.execute(b"SELECT pg_terminate_backend(%d, 60000)" % before)
        for name, value in wanted.items():
            show = Statement(name, f"SELECT current_setting('{name}')".encode(), (), writes=False)
            assert run(ours, show) == [(value,)]
        assert run(ours, SESSION) != [(before,)]


def test_check_accepts_only_the_shipped_settings(pooled):
    findings = preflight.examine(pooled())
    assert (findings.problems, findings.reachable) == ([], True)
    findings = preflight.examine(pooled(ignore_startup_parameters="extra_float_digits"))
    assert not findings.reachable
    assert re.search("unsupported startup parameter(: options| in options: )", findings.warnings[0])
    url = pooled(default_pool_size="1", query="SELECT 1")
    with psycopg.connect(url, autocommit=True) as client:
        before = client.execute(LEFT_BEHIND).fetchone()
        [problem] = preflight.examine(url).problems
        assert "requested: role is none, not stackmgr_app. Behind a pooler" in problem
        assert client.execute(LEFT_BEHIND).fetchone() == before


def test_pooler_waits_less_and_takes_every_client():
    settings = ConfigParser()
    settings.read(paths.directory("deploy") / "pgbouncer.ini")
    waits = settings["pgbouncer"]
    assert max(float(waits[f"{name}_timeout"]) for name in ("query_wait", "server_connect")) < SESSION_SECONDS
    assert float(waits["tcp_user_timeout"]) / 1000 < SESSION_SECONDS
    assert int(waits["max_client_conn"]) > 8 * Settings.database_connections  # of two hosts in a reload


def test_commands_reject_a_pooler(pooled):
    url = pooled(default_pool_size="1")
    with pytest.raises(CommandError, match="this login may not assume stackmgr_owner"), operating(url) as it:
        keys.revoke(it, str(uuid4()))
    with psycopg.connect(url, autocommit=True) as client:
        before = client.execute(LEFT_BEHIND).fetchone()
        with pytest.raises(CommandError, match="leads to a pooler: name PostgreSQL"):
            migrations.apply(url)
        assert client.execute(LEFT_BEHIND).fetchone() == before
