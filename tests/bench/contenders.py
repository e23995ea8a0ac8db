"""What is compared: the service, of this checkout and of others, bare Falcon, and pgbench."""

import contextlib
import http.client
import json
import os
import random
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import psycopg

from stackmgr import paths
from stackmgr.database.conninfo import completed_conninfo
from stackmgr.database.session import SESSION_SECONDS
from tests.bench import delay, load, requests, scripts, verifier
from tests.bench.load import Load
from tests.bench.measure import Slices
from tests.bench.requests import Manager, Task
from tests.support.clusters import new_database
from tests.support.server import RunningService, running

HERE = paths.directory("sql").parent
PRODUCTION_CONF = Path("deploy/gunicorn.conf.py")  # of the checkout
SLICES_CONF = HERE / "tests/bench/slices_conf.py"
_CLIENTS = 8
_BARE_THREADS = 4
# Managers without requests: in tables of one page PostgreSQL would not use an index.
_OTHERS = """
    WITH other AS (SELECT gen_random_uuid() AS id, number FROM generate_series(1, 2000) AS number),
    key AS (
        INSERT INTO stackmgr.api_keys (key_digest, key_id, external_id, identity_id, last_four)
        SELECT sha256(id::text::bytea), gen_random_uuid(), id, 'other-' || number, 'none' FROM other
    )
    INSERT INTO stackmgr.managers (manager_id, external_id, identity_id)
    SELECT gen_random_uuid(), id, 'other-' || number FROM other
"""


@dataclass(frozen=True)
class Checkout:
    """A state of the project, and the Python that has what it needs."""

    folder: Path = HERE
    python: str = sys.executable

    def run(self, *arguments: str, **env: str) -> str:
        """Run a program of the checkout's Python, and return what it printed."""
        command = [self.python, *arguments]
        ended = subprocess.run(
            command, cwd=self.folder, env=os.environ | env, capture_output=True, text=True, check=False
        )
        if ended.returncode != 0:
            raise RuntimeError(f"{self.folder}: {' '.join(command)}:\n{ended.stderr}")
        return ended.stdout

    def require_own_package(self) -> None:
        """Fail unless it is this checkout's code that its Python imports."""
        package = Path(self.run("-c", "import stackmgr; print(stackmgr.__file__)").strip())
        if not package.is_relative_to(self.folder):
            raise RuntimeError(f"in {self.folder}, stackmgr is imported from {package}")


@dataclass
class Contender:
    """Something that is put under load.

    `pid` is the root of its processes, if it has any of its own; `helpers` are those between it and what it
    uses, which count as load.  `slices` are those of its greenlets, if they are measured.
    """

    name: str
    pid: int | None = None
    is_bare: bool = False
    helpers: list[int] = field(default_factory=list)
    slices: Slices | None = None

    def run(self, task: Task) -> Load:
        """Put it under load."""
        raise NotImplementedError


@dataclass
class Server(Contender):
    """A gunicorn on loopback."""

    port: int = 0
    log: Path = Path()
    prepared: dict[tuple[str, bool], Path] = field(default_factory=dict)

    def run(self, task: Task) -> Load:
        """Put it under load; its log is emptied afterwards, so that a long benchmark fills no disk."""
        try:
            return load.wrk(self.port, self.prepared[task.scenario, task.close], task)
        finally:
            os.truncate(self.log, 0)


@dataclass
class Pgbench(Contender):
    """The statements alone."""

    url: str = ""
    variables: dict[str, str] = field(default_factory=dict)
    scripts: dict[str, list[str]] = field(default_factory=dict)

    def run(self, task: Task) -> Load:
        """Put PostgreSQL under load, with the role and the settings of the service's connections."""
        conninfo = completed_conninfo(self.url, "stackmgr_app", SESSION_SECONDS)
        return load.pgbench(conninfo, self.scripts[task.scenario], self.variables, task)


@dataclass(frozen=True)
class Seed:
    """A database with stacks in it, to be copied for each contender, and whose stacks they are."""

    checkout: Checkout
    server_url: str
    database: str
    managers: list[Manager]

    def copied(self) -> contextlib.AbstractContextManager[str]:
        """Make a copy, which is gone when the context ends; its value is the connection string."""
        return new_database(self.server_url, template=self.database)


def serve(
    checkout: Checkout, env: Mapping[str, str], settings: Path = PRODUCTION_CONF
) -> contextlib.AbstractContextManager[RunningService]:
    """Run the service of *checkout*."""
    gunicorn = [checkout.python, "-m", "gunicorn", "-c", str(settings)]
    return running(gunicorn, env=env, folder=checkout.folder)


def _create(port: int, manager: Manager, count: int) -> None:
    chance = random.Random(manager.external_id)  # noqa: S311 - what is drawn is no secret
    headers = {"Authorization": f"Bearer {manager.key}", "Content-Type": "application/json"}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    for _ in range(count):
        key = {"Idempotency-Key": str(uuid4())}
        connection.request("POST", "/manager/stacks", requests.configuration(chance), headers | key)
        response = connection.getresponse()
        body = response.read()
        if response.status != 201:
            raise RuntimeError(f"the request of the seed returned {response.status}: {body.decode()}")
        manager.stack_ids.append(json.loads(body)["id"])
    connection.close()


@contextlib.contextmanager
def seeded(checkout: Checkout, server_url: str, *, managers: int, stacks: int):
    """Yield a Seed made by the checkout itself: its migrations, its command for keys, its service."""
    checkout.require_own_package()
    with new_database(server_url) as url:
        env = {"STACKMGR_DATABASE_URL": url}
        checkout.run("-m", "stackmgr", "migrate", **env)

        def issue(external_id: str) -> Manager:
            key = checkout.run("-m", "stackmgr", "keys", "issue", "--external-id", external_id, **env)
            return Manager(external_id, key.strip(), [])

        with ThreadPoolExecutor(_CLIENTS) as pool:
            made = list(pool.map(issue, [str(uuid4()) for _ in range(managers)]))
            with serve(checkout, env) as service:
                list(pool.map(lambda manager: _create(service.port, manager, stacks), made))
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(_OTHERS)
            connection.execute("VACUUM ANALYZE")
            [(name,)] = connection.execute("SELECT current_database()")
        yield Seed(checkout, server_url, name, made)


@dataclass(frozen=True)
class Surroundings:
    """How far away what the service uses is, in seconds, and whether its slices are measured.

    Without *verifier_delay* it verifies the keys.
    """

    database_delay: float = 0.0
    verifier_delay: float | None = None
    has_slices: bool = False

    @contextlib.contextmanager
    def database(self, seed: Seed, helpers: list[int]):
        """Yield the connection string of a copy of the seed; add the proxy before it to *helpers*."""
        with contextlib.ExitStack() as stack:
            url = stack.enter_context(seed.copied())
            if self.database_delay:
                url, pid = stack.enter_context(delay.delayed(url, self.database_delay))
                helpers.append(pid)
            yield url

    @contextlib.contextmanager
    def verifier(self, seed: Seed, helpers: list[int]):
        """Yield the settings with which a service uses the remote verifier, if there is one."""
        if self.verifier_delay is None:
            yield {}
            return
        with verifier.delayed(seed.managers, self.verifier_delay) as (env, pid):
            helpers.append(pid)
            yield env


NEARBY = Surroundings()


@contextlib.contextmanager
def service(name: str, seed: Seed, env: Mapping[str, str], folder: Path, surroundings: Surroundings = NEARBY):
    """Yield the service of the checkout that made the seed, on a copy of it.

    It runs as in production, or with slices_conf.py if its slices are to be measured.
    """
    helpers: list[int] = []
    slices = Slices(folder / f"{name}-slices") if surroundings.has_slices else None
    with (
        surroundings.database(seed, helpers) as url,
        surroundings.verifier(seed, helpers) as settings,
        serve(
            seed.checkout,
            {"STACKMGR_DATABASE_URL": url, **settings, **env, **(slices.env if slices else {})},
            SLICES_CONF if slices else PRODUCTION_CONF,
        ) as running_service,
    ):
        contender = _server(name, running_service, seed.managers, list(requests.SCENARIOS), folder)
        contender.helpers, contender.slices = helpers, slices
        yield contender


@contextlib.contextmanager
def bare(name: str, worker: str, seed: Seed, env: Mapping[str, str], folder: Path):
    """Yield bare Falcon with a few threads; it knows `get` only."""
    gunicorn = [
        *(sys.executable, "-m", "gunicorn", f"--worker-class={worker}", f"--threads={_BARE_THREADS}"),
        *("--no-control-socket", "--keep-alive=75", "--worker-connections=10000"),
        "tests.bench.bare:application",
    ]
    with running(gunicorn, env=env, folder=HERE) as server:
        contender = _server(name, server, seed.managers, ["get"], folder)
        contender.is_bare = True
        yield contender


@contextlib.contextmanager
def pgbench(name: str, seed: Seed, folder: Path, surroundings: Surroundings = NEARBY):
    """Yield pgbench on a copy of the seed."""
    helpers: list[int] = []
    with surroundings.database(seed, helpers) as url:
        variables = scripts.prepare(url, seed.managers)
        written = {scenario: scripts.write(scenario, folder) for scenario in requests.SCENARIOS}
        yield Pgbench(name, helpers=helpers, url=url, variables=variables, scripts=written)


def _server(
    name: str, service: RunningService, managers: list[Manager], scenarios: list[str], folder: Path
) -> Server:
    server = Server(name, service.pid, port=service.port, log=service.log_path)
    for scenario in scenarios:
        prepared = requests.prepare(scenario, managers)
        for close in (False, True):
            path = folder / f"{name}-{scenario}-{close}.lua"
            requests.write_lua(path, prepared, close=close)
            server.prepared[scenario, close] = path
    return server
