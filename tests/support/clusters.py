"""Throw-away PostgreSQL clusters, of given binaries or of the wheel's, and databases in them."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
from psycopg.conninfo import make_conninfo

from stackmgr.dev.embedded_postgres import EmbeddedPostgres
from tests.support.memory import memory, reachable

LIMITS = b"SELECT name FROM pg_settings WHERE name ~ '^(idle_.*session|transaction|statement)_timeout$'"
_BINARIES = b"SELECT setting FROM pg_config WHERE name = 'BINDIR'"


def binaries_of(url: str) -> Path:
    with psycopg.connect(url) as connection:
        row: Any = connection.execute(_BINARIES).fetchone()
    return Path(row[0])


def accepts(url: str) -> bool:
    try:
        psycopg.connect(url, connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True


class _Cluster(EmbeddedPostgres):
    def __init__(self, folder: Path, binaries: Path | None, settings: dict[str, str]) -> None:
        super().__init__(folder)
        self._binaries = binaries
        self._settings = settings

    def choose_user(self) -> None:
        super().choose_user()
        self.programs = self._binaries or self.programs

    def settings(self) -> dict[str, Any]:
        return super().settings() | self._settings

    def url(self, database: str = "postgres", user: str = "postgres") -> str:
        port = {name: value for name, value in self._settings.items() if name == "port"}
        return make_conninfo(super().url(database, user), **port)


@contextmanager
def cluster(binaries: Path | None = None, *settings: str) -> Iterator[str]:
    given = dict(setting.split("=", 1) for setting in settings)
    # Not pytest's directory, which each run closes again to other users: the server does not run as root.
    with (
        tempfile.TemporaryDirectory(prefix="stackmgr-", dir=memory()) as folder,
        _Cluster(reachable(folder) / "data", binaries, given) as server,
    ):
        yield server.url()


@contextmanager
def new_database(server_url: str, *, encoding: str = "UTF8", template: str = "template0") -> Iterator[str]:
    """Yield the connection string of a new database, which is dropped when the context ends."""
    name = f"stackmgr_test_{uuid4().hex[:12]}"
    with psycopg.connect(server_url, autocommit=True) as connection:
        creation = f"CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE {template}"
        connection.execute(creation.encode())
        try:
            yield make_conninfo(server_url, dbname=name)
        finally:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@contextmanager
def login(server_url: str, attributes: str) -> Iterator[str]:
    """Yield the name of a new role that may log in, which is dropped when the context ends."""
    name = f"stackmgr_test_{uuid4().hex[:12]}"
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {name} LOGIN {attributes}".encode())
        yield name
        connection.execute(f"DROP ROLE {name}".encode())


def limit_sessions(url: str) -> None:
    """Let the server end each session, transaction and statement in this database after a second."""
    with psycopg.connect(url, autocommit=True) as connection:
        for (name,) in connection.execute(LIMITS).fetchall():
            connection.execute(f"ALTER DATABASE {connection.info.dbname} SET {name} = '1s'".encode())
