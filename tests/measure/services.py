"""The measured services, of this checkout and of others, each on a copy of one seed."""

import contextlib
import http.client
import json
import os
import random
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import psycopg

from stackmgr import paths
from stackmgr.dev.embedded_postgres import EmbeddedPostgres
from tests.measure import load, requests
from tests.measure.load import Load
from tests.measure.requests import SeededManager
from tests.support import tcp_proxy, unkey_server
from tests.support.client import STACKS
from tests.support.clusters import new_database
from tests.support.memory import reachable
from tests.support.processes import completed
from tests.support.server import RunningService, running

HERE = paths.directory("sql").parent
PRODUCTION_CONF = Path("deploy/gunicorn.conf.py")  # of the checkout
_CLIENTS = 8
# The disk of the log is not what is measured: no checkpoint but the last falls into a run.
_CALM = (
    b"ALTER SYSTEM SET checkpoint_timeout = '1h'", b"ALTER SYSTEM SET max_wal_size = '8GB'",
    b"SELECT pg_reload_conf()",
)  # fmt: skip


@contextlib.contextmanager
def postgres(folder: Path) -> Iterator[str]:
    given = os.environ.get("STACKMGR_TEST_DATABASE_URL")
    if given:
        yield given
        return
    with EmbeddedPostgres(reachable(folder) / "data") as server:
        url = server.url("postgres")
        with psycopg.connect(url, autocommit=True) as connection:
            for statement in _CALM:
                connection.execute(statement)
        yield url


@dataclass(frozen=True)
class Checkout:
    """A state of the project, and the Python that has what it needs."""

    folder: Path = HERE
    python: str = sys.executable

    def run(self, *arguments: str, **env: str) -> str:
        command = [self.python, *arguments]
        ended = completed(command, cwd=self.folder, env=os.environ | env)
        if ended.returncode != 0:
            raise RuntimeError(f"{self.folder}: {' '.join(command)}:\n{ended.stderr}")
        return ended.stdout

    def require_own_package(self) -> None:
        package = Path(self.run("-c", "import stackmgr; print(stackmgr.__file__)").strip())
        if not package.resolve().is_relative_to(self.folder.resolve()):
            raise RuntimeError(f"in {self.folder}, stackmgr is imported from {package}")

    def issue(self, url: str, external_id: str, *options: str) -> SeededManager:
        command = ("-m", "stackmgr", "keys", "issue", "--external-id", external_id, *options)
        return SeededManager(external_id, self.run(*command, STACKMGR_DATABASE_URL=url).strip())

    def serve(
        self, env: Mapping[str, str], settings: Path = PRODUCTION_CONF
    ) -> contextlib.AbstractContextManager[RunningService]:
        gunicorn = [self.python, "-m", "gunicorn", "-c", str(settings)]
        return running(gunicorn, env=env, cwd=self.folder)


@dataclass(frozen=True)
class Seed:
    """A database with stacks in it, to be copied for each service, and whose stacks they are."""

    checkout: Checkout
    server_url: str
    database: str
    managers: list[SeededManager]


def _create(port: int, manager: SeededManager, count: int) -> None:
    chance = random.Random(manager.external_id)  # noqa: S311 - what is drawn is no secret
    headers = {"Authorization": f"Bearer {manager.key}", "Content-Type": "application/json"}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    for _ in range(count):
        key = {"Idempotency-Key": str(uuid4())}
        connection.request("POST", STACKS, requests.configuration(chance), headers | key)
        response = connection.getresponse()
        body = response.read()
        if response.status != 201:
            raise RuntimeError(f"the request of the seed returned {response.status}: {body.decode()}")
        manager.stack_ids.append(json.loads(body)["id"])
    connection.close()


@contextlib.contextmanager
def seeded(checkout: Checkout, server_url: str, *, managers: int, stacks: int) -> Iterator[Seed]:
    checkout.require_own_package()
    with new_database(server_url) as url:
        checkout.run("-m", "stackmgr", "migrate", STACKMGR_DATABASE_URL=url)
        with ThreadPoolExecutor(_CLIENTS) as pool:
            made = list(pool.map(lambda _: checkout.issue(url, str(uuid4())), range(managers)))
            with checkout.serve({"STACKMGR_DATABASE_URL": url}) as service:
                list(pool.map(lambda manager: _create(service.port, manager, stacks), made))
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")
            [(name,)] = connection.execute("SELECT current_database()")
        yield Seed(checkout, server_url, name, made)


@dataclass
class MeasuredService:
    """A service to put under load; `helpers` are processes before and behind it, which count as load."""

    name: str
    service: RunningService
    prepared: dict[str, Path]
    helpers: list[int] = field(default_factory=list)

    def run(self, scenario: str, connections: int, seconds: int) -> Load:
        try:
            return load.wrk(self.service.port, self.prepared[scenario], connections, seconds)
        finally:
            os.truncate(self.service.log_path, 0)


@contextlib.contextmanager
def served(
    name: str,
    seed: Seed,
    env: Mapping[str, str],
    folder: Path,
    *,
    database_delay: float = 0.0,
    verifier_delay: float | None = None,
) -> Iterator[MeasuredService]:
    """Yield the service of the checkout that made the seed, on a copy of it; *folder* is for its requests.

    The delays are in seconds.  Without *verifier_delay* it verifies the keys itself.
    """
    helpers: list[int] = []
    environ = dict(env)
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(new_database(seed.server_url, template=seed.database))
        if database_delay:
            url, pid = stack.enter_context(tcp_proxy.delayed(url, database_delay))
            helpers.append(pid)
        if verifier_delay is not None:
            keys = {manager.key: manager.external_id for manager in seed.managers}
            of_verifier, pid = stack.enter_context(unkey_server.unkey_process(keys, verifier_delay))
            helpers.append(pid)
            environ = of_verifier | environ
        service = stack.enter_context(seed.checkout.serve({"STACKMGR_DATABASE_URL": url, **environ}))
        prepared = {
            scenario: requests.write_lua(folder / f"{name}-{scenario}.lua", scenario, seed.managers)
            for scenario in requests.SCENARIOS
        }
        yield MeasuredService(name, service, prepared, helpers)
