"""A PgBouncer of a test's own, with the configuration of deploy/pgbouncer.ini, in front of a PostgreSQL."""

import os
import re
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from stackmgr import paths
from tests.support import processes
from tests.support.clusters import accepts
from tests.support.psql import run_psql

PROGRAM = Path("/usr/sbin/pgbouncer")
_PORT = "6432"
_LOGIN = "stackmgr_service"


def make_pooled_login(server_url: str) -> None:
    database = conninfo_to_dict(server_url)["dbname"]
    script = paths.directory("deploy") / "postgresql" / "pooler.sql"
    # Another process may test on the same server; the settings belong to this database alone.
    with (
        suppress(psycopg.errors.DuplicateObject, psycopg.errors.UniqueViolation),
        psycopg.connect(server_url, autocommit=True) as admin,
    ):
        admin.execute(b"CREATE ROLE stackmgr_service LOGIN IN ROLE stackmgr_app")
    ran = run_psql(server_url, "-q", "-v", f"database={database}", "-f", script)
    assert ran.returncode == 0, ran.stderr


def socket_path(url: str) -> str:
    return f"{conninfo_to_dict(url)['host']}/.s.PGSQL.{_PORT}"


@contextmanager
def pgbouncer(program: Path, server_url: str, *, query: str | None = None, **settings: str) -> Iterator[str]:
    owner = Path(str(conninfo_to_dict(server_url)["host"])).stat()
    with tempfile.TemporaryDirectory(prefix="stackmgr-pgb-") as folder:
        run_as: dict[str, Any] = {}
        if os.geteuid() == 0:
            os.chown(folder, owner.st_uid, owner.st_gid)
            run_as = {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": []}
        file = Path(folder) / "ini"
        file.write_text(_configuration(folder, server_url, query, settings))
        Path(folder, "userlist.txt").write_text(f'"{_LOGIN}" ""\n')
        url = make_conninfo(server_url, host=folder, port=_PORT, user=_LOGIN)
        # From 1.23 on it waits for its clients after a SIGTERM.
        command, log = [program, file], Path(folder) / "output"
        with processes.running(command, log, lambda _: accepts(url), end=signal.SIGKILL, **run_as):
            yield url


def _configuration(folder: str, server_url: str, query: str | None, settings: dict[str, str]) -> str:
    text = (paths.directory("deploy") / "pgbouncer.ini").read_text(encoding="utf-8")
    shipped = re.search(r"^stackmgr = .*connect_query='(.*)'$", text, re.MULTILINE)
    assert shipped is not None
    server = conninfo_to_dict(server_url)
    database = f"* = host={server['host']} port={server.get('port', '5432')} user={_LOGIN}"
    text = text.replace(shipped[0], f"{database} connect_query='{shipped[1] if query is None else query}'")
    replaced = {
        "listen_addr": "", "unix_socket_dir": folder, "auth_type": "trust",
        "auth_file": f"{folder}/userlist.txt", "logfile": f"{folder}/log", "pidfile": f"{folder}/pid",
        **settings,
    }  # fmt: skip
    for name, value in replaced.items():
        text, count = re.subn(rf"^;?{name} =.*$", f"{name} = {value}", text, flags=re.MULTILINE)
        assert count == 1, name
    return text
