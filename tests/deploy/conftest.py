"""The service as it is deployed: gunicorn with its settings, behind nginx with its configuration."""

from collections.abc import Iterator

import pytest

from tests.support.nginx import NginxProxy, nginx_before
from tests.support.postgres import FaultyPostgres, faulty_postgres
from tests.support.server import RunningService, free_port, running_service

# nginx as in production, but for the patience it has with clients that fall silent.
IMPATIENT = {"client_header_timeout 10s;": "client_header_timeout 1s;",
    "client_body_timeout 10s;": "client_body_timeout 1s;", "keepalive_timeout 75s;": "keepalive_timeout 1s;",
    "send_timeout 30s;": "send_timeout 1s; lingering_timeout 1s;"}  # fmt: skip


@pytest.fixture(scope="session")
def service(database_url: str) -> Iterator[RunningService]:
    with running_service(database_url, env={"STACKMGR_ADMIN_BIND": f"127.0.0.1:{free_port()}"}) as running:
        yield running


@pytest.fixture(scope="session")
def proxy(service: RunningService, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NginxProxy]:
    with nginx_before(tmp_path_factory.mktemp("nginx"), service.port, changes=IMPATIENT) as running:
        yield running


@pytest.fixture
def server() -> Iterator[FaultyPostgres]:
    with faulty_postgres() as server:
        yield server
