"""Throw-away PostgreSQL clusters, made from whichever binaries are on this machine, and databases in them."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import psycopg
from psycopg.conninfo import make_conninfo

from tests.support.memory import memory

# PostgreSQL refuses to run as root.
_UNPRIVILEGED = "nobody"
_BINARIES = b"SELECT setting FROM pg_config WHERE name = 'BINDIR'"


def binaries_of(url: str) -> Path:
    """Return the directory of the programs of a running server."""
    with psycopg.connect(url) as connection:
        row: Any = connection.execute(_BINARIES).fetchone()
    return Path(row[0])


@contextmanager
def cluster(binaries: Path, *settings: str) -> Iterator[str]:
    """Yield the connection string, as superuser, of a new cluster that ends with the context.

    *binaries* is the directory of `initdb` and `pg_ctl`; a root process runs them as another user, who must
    be able to read them.  *settings* are `name=value`.  The cluster listens on a socket in a directory of its
    own, and nowhere else.
    """
    # Not pytest's directory: the path of a socket may have no more than 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="stackmgr-pg-", dir=memory()))
    data = folder / "data"
    log = folder / "log"
    as_user = _drop_root(folder)

    def run(program: str, *arguments: str) -> None:
        command = [str(binaries / program), "--pgdata", str(data), *arguments]
        # To a file: the server inherits its starter's output, and a pipe would be waited for until it ends.
        with log.open("ab") as output:
            ended = subprocess.run(command, stdout=output, stderr=output, cwd=folder, check=False, **as_user)
        assert ended.returncode == 0, f"{program}: {log.read_text(errors='replace')}"

    options = "".join(f" -c {setting}" for setting in settings)
    try:
        run("initdb", "--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync")
        run(
            "pg_ctl", "start", "--wait", "--silent", "--options", f"-c listen_addresses= -k {folder}{options}"
        )
        try:
            yield f"postgresql://postgres@/postgres?host={quote(str(folder), safe='')}"
        finally:
            run("pg_ctl", "stop", "--wait", "--silent", "--mode=immediate")
    finally:
        shutil.rmtree(folder)


def _drop_root(folder: Path) -> dict[str, Any]:
    """Return how a subprocess is to run, and give *folder* to the user it runs as."""
    if os.geteuid() != 0:
        return {}
    user = pwd.getpwnam(_UNPRIVILEGED)
    os.chown(folder, user.pw_uid, user.pw_gid)
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


@contextmanager
def new_database(server_url: str, *, encoding: str = "UTF8", template: str = "template0") -> Iterator[str]:
    """Yield the connection string of a new database, which is dropped when the context ends.

    It is empty, unless *template* names another one of the same encoding, which must have no connections.
    """
    name = f"stackmgr_test_{uuid4().hex[:12]}"
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(
            f"CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE {template}".encode()
        )
        try:
            yield make_conninfo(server_url, dbname=name)
        finally:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())
