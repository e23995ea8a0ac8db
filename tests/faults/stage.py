"""Where a cell takes place: PostgreSQL, the service as in production, and the network between the two."""

import random
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import psutil

from stackmgr import paths
from stackmgr.access import api_keys
from tests.faults import misbehaviour
from tests.faults.unit import Unit
from tests.support.memory import memory
from tests.support.postgres import FaultyPostgres
from tests.support.tcp_proxy import Proxy
from tests.support.waiting import eventually
from tests.support.workload import KEY_CANARY, Manager, Workload, new_managers

if TYPE_CHECKING:
    from tests.support.http_server import HttpServer

# Seconds that a request may wait for the database.
DATABASE_TIMEOUT = 2
WORKERS = 2
# Seconds in which a worker that hangs is replaced: gunicorn looks every second, after its time-out of 30 s.
REPLACED = 40.0

ENVIRONMENT = {
    "STACKMGR_DATABASE_TIMEOUT": str(DATABASE_TIMEOUT),
    "STACKMGR_CONCURRENCY": "8",
    "WEB_CONCURRENCY": str(WORKERS),
}
_SOURCE = paths.directory("deploy").parent


class NoPlace(Exception):
    """A cell needs what this machine, or its user's rights, cannot give; the message says what."""


@dataclass
class Setup:
    """What a cell may prepare before the service starts.

    `environment` and `configuration` (lines of gunicorn's settings) are added to those of the service;
    `folder` is empty and ends with the stage; `stderr` replaces the log; `login` and `port` are the
    service's; `socket_path` is where the stage's network leads to, if not to the server; clients go to
    `client_port` with `tls`, if not to the service itself.
    """

    server: FaultyPostgres
    managers: list[Manager]
    folder: Path
    environment: dict[str, str] = field(default_factory=lambda: dict(ENVIRONMENT))
    configuration: str = misbehaviour.CONFIGURATION
    stderr: int | None = None
    login: str = "postgres"
    socket_path: str = ""
    port: int = 0
    client_port: int = 0
    tls: ssl.SSLContext | None = None
    unkey: "HttpServer | None" = None

    def use(self, server: FaultyPostgres) -> None:
        """Use another server, whose database is migrated."""
        self.server = server
        self.managers = new_managers(server.url())


class Stage:
    """A service of its own on a given server, with a network between the two that can fail."""

    def __init__(self, setup: Setup, proxy: Proxy, seed: int) -> None:
        self.setup = setup
        self.server = setup.server
        self.managers = setup.managers
        self.folder = setup.folder
        self.unkey = setup.unkey
        self.proxy = proxy
        self.chance = random.Random(seed)  # noqa: S311 - to be repeatable
        self.faults: list[tuple[float, float]] = []  # when each began and ended
        self.logs: list[str] = []
        self._standby = ExitStack()
        self.service = self._make_service()
        self.service.start()

    def _make_service(self) -> Unit:
        """Return the service by the units of deploy/, whose settings of gunicorn are completed."""
        deploy = self.folder / "deploy"
        deploy.mkdir()
        for name in ("stackmgr.service", "gunicorn.conf.py"):
            (deploy / name).write_text((_SOURCE / "deploy" / name).read_text())
        with (deploy / "gunicorn.conf.py").open("a") as settings:
            settings.write(self.setup.configuration)
        host, port = self.server.network_address or ("127.0.0.1", self.proxy.port)
        url = f"postgresql://{self.setup.login}@{host}:{port}/stackmgr?target_session_attrs=read-write"
        environment = {
            "PYTHONPATH": str(_SOURCE),
            "STACKMGR_DATABASE_URL": url,
            **self.setup.environment,
        }
        unit = Unit(self.folder, deploy, environment, port=self.setup.port, supervised=True)
        unit.stderr = self.setup.stderr
        return unit

    def workload(self, seed: int, *, keeps: bool = False, lists: bool = True) -> Workload:
        """Return clients of the service, or of what stands before it."""
        port, tls = self.setup.client_port, self.setup.tls
        return Workload(
            seed,
            self.managers,
            lambda: port or self.service.port,
            tls=tls,
            keeps=keeps or tls is not None,
            lists=lists,
        )

    def workers(self) -> list[psutil.Process]:
        return self.service.workers()

    def a_worker(self) -> psutil.Process:
        """Return one of the workers, once they all run."""
        self.service.await_workers(WORKERS)
        worker: psutil.Process = self.chance.choice(self.workers())
        return worker

    def await_replacement(self, worker: psutil.Process, seconds: float = REPLACED) -> None:
        """Return once *worker* has ended and another one runs in its place."""
        eventually(
            lambda: worker not in self.workers() and len(self.workers()) == WORKERS,
            seconds,
            "the worker is not replaced",
        )

    def replace_server(self, server: FaultyPostgres, undo: ExitStack) -> None:
        """Lead the service to another server; *undo* ends that one when its time has come."""
        self.logs.append(self.server.read_log())
        self.server = server
        self.proxy.target = server.socket_path
        self.proxy.cut()
        self._standby.close()
        self._standby = undo

    def evidence(self) -> "Evidence":
        logs = [*self.logs, self.service.log, *self.server.logs, self.server.read_log()]
        return Evidence(self.server.url(), self.managers, self.faults, logs)

    def close(self) -> None:
        self.service.close()
        self._standby.close()


@contextmanager
def staged(setup: Setup, seed: int) -> Iterator[Stage]:
    """Set the stage on the server of *setup*, which is well again afterwards."""
    with Proxy(setup.socket_path or setup.server.socket_path) as proxy:
        stage = Stage(setup, proxy, seed)
        try:
            yield stage
        finally:
            stage.close()
            setup.server.restore()


@contextmanager
def new_setup(server: FaultyPostgres) -> Iterator[Setup]:
    """Prepare a stage on *server*."""
    with TemporaryDirectory(prefix="stackmgr-faults-", dir=memory()) as folder:
        yield Setup(server, new_managers(server.url()), Path(folder))


@dataclass(frozen=True)
class Evidence:
    """What a cell leaves: its database, when each fault began and ended, and every log."""

    url: str
    managers: list[Manager]
    faults: list[tuple[float, float]]
    logs: list[str]


def secrets_in(logs: list[str], managers: list[Manager]) -> list[str]:
    """Return, in words, which secrets of the clients stand in *logs*."""
    keys = [manager.api_key for manager in managers]
    secrets = {
        "an API key": keys,
        "the digest of an API key": [api_keys.digest(key).hex() for key in keys],
        "an Authorization": ["Bearer "],
        "an Idempotency-Key": [KEY_CANARY],
    }
    return [what for what, texts in secrets.items() if any(text in log for text in texts for log in logs)]
