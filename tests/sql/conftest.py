"""Fixtures for tests that need a cluster of their own, because roles belong to a whole cluster."""

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

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
    """A connection string, as superuser, to an empty database in a cluster without roles."""
    with new_database(bare_cluster_url) as url:
        yield url
