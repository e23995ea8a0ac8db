"""A reload that cannot succeed: the workers keep serving, and the log says why."""

import os
import signal
import subprocess
import sys
import time

import psycopg
from psycopg.conninfo import make_conninfo

from tests.deploy.reloads import messages, rejected_reload
from tests.support.processes import completed
from tests.support.server import running_service, workers_replaced
from tests.support.waiting import eventually


def test_rejected_setting_or_login_is_named(server):
    url = make_conninfo(server.url(), password="wrong")  # noqa: S106 - which is the point
    with running_service(url) as service, psycopg.connect(url, autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET fsync = off")
        connection.execute("ALTER SYSTEM SET full_page_writes = off")
        connection.execute("SELECT pg_reload_conf()")
        eventually(lambda: "fsync is off" in check(url).stderr)
        assert "full_page_writes is off" in rejected_reload(service)
        (server.folder / "pg_hba.conf").write_text("local all all scram-sha-256\n")
        connection.execute("SELECT pg_reload_conf()")
        eventually(lambda: "rejects the login" in check(url).stderr)
        assert "the database rejects the login" in rejected_reload(service)
    assert check(url).returncode == 3
    checked = check(url, STACKMGR_CONCURRENCY="x")
    assert (checked.returncode, len(checked.stderr.splitlines())) == (3, 2)


def check(url: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "stackmgr", "check"]
    environ["STACKMGR_DATABASE_URL"] = url
    return completed(command, env=environ)


def test_locked_table_delays_no_reload_for_long(server):
    url = server.url()
    with running_service(url) as service, psycopg.connect(url) as connection:
        connection.execute("LOCK TABLE stackmgr.schema_migrations")
        with workers_replaced(service.pid, patience=30.0):
            os.kill(service.pid, signal.SIGHUP)
        expected = "could not be checked: canceling statement"
        eventually(lambda: any(expected in said for said in messages(service)))


def test_frozen_database_delays_no_start_or_stop(server):
    with server.frozen(), running_service(server.url()) as service:
        expected = "the database of STACKMGR_DATABASE_URL cannot be reached"
        eventually(lambda: any(expected in said for said in messages(service)))
        os.kill(service.pid, signal.SIGHUP)
        time.sleep(0.2)
        started = time.monotonic()
        assert service.stop() == 0
        assert time.monotonic() - started < 20
