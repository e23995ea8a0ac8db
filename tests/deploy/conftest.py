"""The service as it is deployed: gunicorn with its settings, behind nginx with its configuration."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from stackmgr.database.pool import Database
from stackmgr.operate import issued_keys
from tests.support.memory import memory
from tests.support.nginx import Proxy, running_proxy
from tests.support.postgres import FaultyPostgres
from tests.support.server import RunningService, free_port, running_service

# nginx as in production, but for the patience it has with clients that fall silent.
IMPATIENT = {
    "client_header_timeout 10s;": "client_header_timeout 1s;",
    "client_body_timeout 10s;": "client_body_timeout 1s;",
    "keepalive_timeout 75s;": "keepalive_timeout 1s;",
    "send_timeout 30s;": "send_timeout 1s; lingering_timeout 1s;",
}


@pytest.fixture(scope="session")
def service(database_url: str) -> Iterator[RunningService]:
    """gunicorn, with a listener for operators beside the one that nginx knows."""
    with running_service(database_url, env={"STACKMGR_ADMIN_BIND": f"127.0.0.1:{free_port()}"}) as running:
        yield running


@pytest.fixture(scope="session")
def proxy(service: RunningService, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """nginx in front of the service."""
    with running_proxy(tmp_path_factory.mktemp("nginx"), service.port, IMPATIENT) as running:
        yield running


@pytest.fixture
def new_key(operator: Database) -> Callable[[], str]:
    """Return a function that issues a key for a new manager."""

    def issue() -> str:
        with operator.session() as session:
            return issued_keys.issue(session, str(uuid4()))

    return issue


@pytest.fixture
def server() -> Iterator[FaultyPostgres]:
    """A server of a test's own; not below pytest's folder, which each run closes to the server's user."""
    with (
        tempfile.TemporaryDirectory(prefix="stackmgr-", dir=memory()) as folder,
        FaultyPostgres(Path(folder) / "data") as server,
    ):
        server.prepare()
        yield server
