"""A reload that cannot succeed: the workers keep serving, and the log says why."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from stackmgr import paths
from stackmgr.operate import migrations
from tests.support.clusters import new_database
from tests.support.postgres import eventually
from tests.support.server import (
    GUNICORN_COMMAND,
    RunningService,
    running,
    running_service,
    send_request,
    workers_replaced,
)

PATIENCE = 20.0
RELOAD_REJECTED = "The reload is refused for the reasons above; the workers keep serving as before"


@pytest.fixture
def own_url(server_url):
    with new_database(server_url) as url:
        migrations.apply(url)
        yield url


def messages(service: RunningService) -> list[str]:
    return [json.loads(line)["message"] for line in service.log_path.read_text().splitlines()]


def rejected_reload(service: RunningService) -> str:
    """Send SIGHUP and return the last problem that is logged before the rejection."""
    workers = set(psutil.Process(service.pid).children())
    os.kill(service.pid, signal.SIGHUP)
    deadline = time.monotonic() + PATIENCE
    while RELOAD_REJECTED not in messages(service):
        assert service.process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(0.5)  # in which the master would end, or replace the workers
    assert set(psutil.Process(service.pid).children()) == workers
    assert send_request(service.port, "/")[0] == 404
    return messages(service)[messages(service).index(RELOAD_REJECTED) - 1]


def test_a_whitelist_that_is_broken_is_named_and_once_repaired_reloaded(own_url, tmp_path):
    whitelist = tmp_path / "tokens.json"
    shutil.copy(paths.default_whitelist(), whitelist)
    with running_service(own_url, env={"STACKMGR_TOKENS": str(whitelist)}) as service:
        whitelist.write_text("{")
        assert rejected_reload(service) == f"whitelist {whitelist}: is not a JSON document"
        before = psutil.Process(service.pid).children()
        for worker in before:
            worker.kill()
        eventually(lambda: {*psutil.Process(service.pid).children()} - {*before})
        assert send_request(service.port, "/")[0] == 404
        shutil.copy(paths.default_whitelist(), whitelist)
        with workers_replaced(service.pid):
            os.kill(service.pid, signal.SIGHUP)
        assert send_request(service.port, "/")[0] == 404
        assert service.stop() == 0


def test_a_database_that_could_lose_what_was_acknowledged_is_named(server):
    with running_service(server.url()) as service:
        with psycopg.connect(server.url(), autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET fsync = off")
        eventually(lambda: reloaded_fsync(server.url()) == "off")
        assert "fsync is off" in rejected_reload(service)


def reloaded_fsync(url: str) -> str:
    """Have the server read its settings again, and return the setting that a new connection finds."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SELECT pg_reload_conf()")
    with psycopg.connect(url) as connection:
        [(setting,)] = connection.execute("SHOW fsync")
    return setting


def test_a_login_that_the_database_rejects_is_named_beside_a_wrong_setting(server):
    url = make_conninfo(server.url(), password="wrong")  # noqa: S106 - which is the point
    with running_service(url) as service, psycopg.connect(url, autocommit=True) as connection:
        (server.folder / "pg_hba.conf").write_text("local all all scram-sha-256\n")
        connection.execute("SELECT pg_reload_conf()")
        eventually(lambda: "rejects the login" in check(url).stderr)
        assert "the database rejects the login" in rejected_reload(service)
    checked = check(url, STACKMGR_CONCURRENCY="x")
    assert (checked.returncode, len(checked.stderr.splitlines())) == (3, 2)
    assert check(url).returncode == 3


def check(url: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "stackmgr", "check"],
        env={"STACKMGR_DATABASE_URL": url, **environ},
        check=False,
        capture_output=True,
        text=True,
    )


def test_what_cannot_be_run_is_named_with_its_path(own_url, tmp_path):
    """An environment that was made under umask 077 fails in the same place, for a user other than root."""
    current = tmp_path / "current"
    current.symlink_to(Path(sys.executable).parents[1])
    python = str(current / "bin" / Path(sys.executable).name)
    with running([python, *GUNICORN_COMMAND[1:]], env={"STACKMGR_DATABASE_URL": own_url}) as service:
        current.unlink()
        assert rejected_reload(service) == f"The reload failed: {python}: No such file or directory"


def test_a_lock_on_the_history_of_migrations_holds_up_no_reload_for_long(own_url):
    with running_service(own_url) as service, psycopg.connect(own_url) as connection:
        connection.execute("LOCK TABLE stackmgr.schema_migrations")
        with workers_replaced(service.pid, patience=30.0):
            os.kill(service.pid, signal.SIGHUP)
        eventually(
            lambda: any("could not be checked: canceling statement" in said for said in messages(service))
        )


def test_a_database_that_freezes_holds_up_neither_a_start_nor_the_end(server):
    with server.frozen(), running_service(server.url()) as service:
        eventually(
            lambda: any(
                "the database of STACKMGR_DATABASE_URL cannot be reached" in said
                for said in messages(service)
            )
        )
        os.kill(service.pid, signal.SIGHUP)
        time.sleep(0.2)
        started = time.monotonic()
        assert service.stop() == 0
        assert time.monotonic() - started < PATIENCE
