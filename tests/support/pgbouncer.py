"""A PgBouncer of a test's own, with the configuration of deploy/pgbouncer.ini, in front of a PostgreSQL."""

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from stackmgr import paths
from tests.support.clusters import binaries_of

PROGRAM = Path("/usr/sbin/pgbouncer")
_PORT = "6432"
_LOGIN = "stackmgr_service"
_START_SECONDS = 60.0


def shipped() -> str:
    """Return the text of deploy/pgbouncer.ini."""
    return (paths.directory("deploy") / "pgbouncer.ini").read_text(encoding="utf-8")


def connect_query() -> str:
    """Return what the shipped configuration runs on each server connection."""
    match = re.search(r"^stackmgr = .*connect_query='(.*)'$", shipped(), re.MULTILINE)
    assert match is not None
    return match[1]


def make_pooled_login(server_url: str) -> None:
    """Make the login stackmgr_service, with the settings of pooler.sql in one database."""
    database = conninfo_to_dict(server_url)["dbname"]
    script = paths.directory("deploy") / "postgresql" / "pooler.sql"
    # Another process may test on the same server; the settings belong to this database alone.
    with (
        suppress(psycopg.errors.DuplicateObject, psycopg.errors.UniqueViolation),
        psycopg.connect(server_url, autocommit=True) as admin,
    ):
        admin.execute(b"CREATE ROLE stackmgr_service LOGIN IN ROLE stackmgr_app")
    command = [
        str(binaries_of(server_url) / "psql"),
        "-X",
        "-q",
        "-d",
        server_url,
        "-v",
        f"database={database}",
        "-f",
        str(script),
    ]
    subprocess.run(command, check=True)


def socket_path(url: str) -> str:
    """Return the path of the Unix socket that a connection string of `pgbouncer` leads to."""
    return f"{conninfo_to_dict(url)['host']}/.s.PGSQL.{_PORT}"


@contextmanager
def pgbouncer(program: Path, server_url: str, *, query: str | None = None, **settings: str) -> Iterator[str]:
    """Yield the connection string of a PgBouncer in front of every database of a server on a Unix socket.

    The login is that of `make_pooled_login`.  *query* replaces the shipped connect_query, *settings* replace
    shipped ones.
    """
    server = conninfo_to_dict(server_url)
    host = str(server["host"])
    folder = Path(tempfile.mkdtemp(prefix="stackmgr-pgb-"))
    owner = Path(host).stat()
    run_as: dict[str, Any] = {}
    if os.geteuid() == 0:
        os.chown(folder, owner.st_uid, owner.st_gid)
        run_as = {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": []}
    databases = (
        f"* = host={host} port={server.get('port', '5432')} user={_LOGIN}"
        f" connect_query='{connect_query() if query is None else query}'"
    )
    replaced = {
        "listen_addr": "",
        "unix_socket_dir": str(folder),
        "auth_type": "trust",
        "auth_file": str(folder / "userlist.txt"),
        "logfile": str(folder / "log"),
        "pidfile": str(folder / "pid"),
        **settings,
    }
    (folder / "userlist.txt").write_text(f'"{_LOGIN}" ""\n')
    text = re.sub(r"^stackmgr = .*$", lambda _: databases, shipped(), flags=re.MULTILINE)
    for name, value in replaced.items():
        text, count = re.subn(rf"^;?{name} =.*$", f"{name} = {value}", text, flags=re.MULTILINE)
        assert count == 1, name
    (folder / "ini").write_text(text)
    process = subprocess.Popen(
        [program, folder / "ini"], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **run_as
    )
    try:
        url = make_conninfo(server_url, host=str(folder), port=_PORT, user=_LOGIN)
        _wait_until_ready(process, url, folder / "log")
        yield url
    finally:
        process.kill()  # from 1.23 on it waits for its clients after a SIGTERM
        process.wait(10)
        shutil.rmtree(folder)


def _wait_until_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            psycopg.connect(url, connect_timeout=2).close()
        except psycopg.OperationalError:
            alive = process.poll() is None and time.monotonic() < deadline
            assert alive, log.read_text() if log.exists() else "PgBouncer did not start"
            time.sleep(0.05)
        else:
            return
