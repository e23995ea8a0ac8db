"""Fixtures: databases that a test may change, clusters without roles, files beside the migrations."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from stackmgr import paths
from stackmgr.operate import migrations
from tests.support.clusters import cluster, new_database

ROLES = b"SELECT rolname FROM pg_roles WHERE oid >= 16384"


@pytest.fixture(scope="session")
def cluster_url(binaries: Path) -> Iterator[str]:
    with cluster(binaries) as url:
        yield url


@pytest.fixture
def bare_cluster_url(cluster_url: str) -> Iterator[str]:
    """A connection string, as superuser, to a cluster in which no role was ever created."""
    yield cluster_url
    with psycopg.connect(cluster_url, autocommit=True) as connection:
        for (role,) in connection.execute(ROLES).fetchall():
            connection.execute(f"DROP ROLE {role}".encode())


@pytest.fixture
def bare_database_url(bare_cluster_url: str) -> Iterator[str]:
    with new_database(bare_cluster_url) as url:
        yield url


@pytest.fixture
def own_url(server_url: str) -> Iterator[str]:
    with new_database(server_url) as url:
        migrations.apply(url)
        yield url


@pytest.fixture
def add(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Path]]:
    """Return a function that adds files to a copy of the migrations, numbered on, and returns their paths."""
    copy, directory = tmp_path / "sql" / "migrations", paths.directory
    shutil.copytree(directory("sql") / "migrations", copy)
    monkeypatch.setattr(paths, "directory", lambda at: tmp_path / at if at == "sql" else directory(at))

    def add(**texts: str) -> list[Path]:
        version = migrations.available()[-1].version
        added = [copy / f"{version + n:04d}_{slug}.sql" for n, slug in enumerate(texts, 1)]
        for path, text in zip(added, texts.values(), strict=True):
            path.write_text(text)
        return added

    return add
