"""A throw-away Citus: a coordinator and two workers on loopback, made from given binaries."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from stackmgr import paths
from tests.support.clusters import cluster
from tests.support.psql import run_psql
from tests.support.server import free_port

WORKERS = 2
SETTINGS = ("shared_preload_libraries=citus",)
# Of the connections to the coordinator, as on the page.
OPTIONS = "-c plan_cache_mode=auto -c citus.select_opens_transaction_block=off"
_SET_COORDINATOR = "SELECT citus_set_coordinator_host('127.0.0.1', %s)"
_ADD_NODE = "SELECT citus_add_node('127.0.0.1', %s)"


@contextmanager
def citus(binaries: Path) -> Iterator[list[str]]:
    """Yield the connection strings, as superuser, of a coordinator and its workers, not yet connected."""
    with ExitStack() as nodes:
        urls = []
        for _ in range(WORKERS + 1):
            port = free_port()
            network = ("listen_addresses=127.0.0.1", f"port={port}")
            url = nodes.enter_context(cluster(binaries, *SETTINGS, *network))
            urls.append(make_conninfo(url, port=port, options=OPTIONS))
        yield urls


def distribute(binaries: Path, nodes: list[str], url: str) -> None:
    """Distribute the migrated database *url* of the coordinator, the first of *nodes*."""
    name = str(conninfo_to_dict(url)["dbname"])
    for node in nodes[1:]:
        with psycopg.connect(node, autocommit=True) as worker:
            worker.execute(f"CREATE DATABASE {name} ENCODING 'UTF8' LOCALE 'C' TEMPLATE template0".encode())
    for node in nodes:
        with psycopg.connect(node, dbname=name, autocommit=True) as connection:
            connection.execute(b"CREATE EXTENSION citus")
    with psycopg.connect(url, autocommit=True) as coordinator:
        # Nodes connect to each other as the role that a session has assumed.
        for role in ("stackmgr_owner", "stackmgr_app", "stackmgr_reader"):
            coordinator.execute(f"ALTER ROLE {role} LOGIN".encode())
        for node, query in zip(nodes, (_SET_COORDINATOR, *[_ADD_NODE] * WORKERS), strict=True):
            coordinator.execute(query, [conninfo_to_dict(node)["port"]])
    script = paths.directory("deploy") / "citus.sql"
    ran = run_psql(url, "-q", "-f", script, binaries=binaries)
    assert ran.returncode == 0, ran.stderr
