"""Where a cell takes place: PostgreSQL, the service as in production, and the network between the two."""

import random
import ssl
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from stackmgr import paths
from tests.faults import misbehaviour
from tests.faults.cell import Prepare
from tests.faults.unit import Unit
from tests.support.http_server import HttpServer
from tests.support.memory import memory
from tests.support.postgres import FaultyPostgres
from tests.support.tcp_proxy import Proxy
from tests.support.waiting import eventually
from tests.support.workload import Manager, Workload, new_managers

# Seconds that a request may wait for the database.
DATABASE_TIMEOUT = 2
WORKERS = 2
# Seconds in which a worker that hangs is killed: gunicorn looks every second, after its timeout of 30 s.
_REPLACED = 40.0
ENVIRONMENT = {"STACKMGR_DATABASE_TIMEOUT": str(DATABASE_TIMEOUT), "WEB_CONCURRENCY": str(WORKERS)}
_SOURCE = paths.directory("deploy").parent


class NoPlace(Exception):
    """A cell needs what this machine, or its user's rights, cannot give; the message says what."""


@dataclass(frozen=True)
class Evidence:
    """The records of a cell: its database, when each fault began and ended, and every log."""

    url: str
    managers: list[Manager]
    faults: list[tuple[float, float]]
    logs: list[str]


class Stage:
    """A service of its own on a given server, with a network between the two that can fail.

    A cell may prepare it before the service starts.  `environment` and `configuration` (lines of
    gunicorn's settings) are added to those of the service; `folder` is empty and ends with the
    stage; `login` and `port` are the service's; `socket_path` is where the network leads to, if not
    to the server; clients go to `client_port` with `tls`, if not to the service itself.
    """

    proxy: Proxy
    service: Unit
    unkey: HttpServer

    def __init__(self, server: FaultyPostgres, folder: Path, seed: int) -> None:
        self.folder = folder
        self.chance = random.Random(seed)  # noqa: S311 - to be repeatable
        self.environment = dict(ENVIRONMENT)
        self.configuration = misbehaviour.CONFIGURATION
        self.login, self.socket_path = "postgres", ""
        self.port = self.client_port = 0
        self.tls: ssl.SSLContext | None = None
        self.faults: list[tuple[float, float]] = []  # when each began and ended
        self._logs: list[str] = []
        self._standby = ExitStack()
        self.server = server
        self.managers = new_managers(server.url())

    def make_service(self) -> Unit:
        deploy = self.folder / "deploy"
        deploy.mkdir()
        for name in ("stackmgr.service", "gunicorn.conf.py"):
            (deploy / name).write_text((_SOURCE / "deploy" / name).read_text())
        with (deploy / "gunicorn.conf.py").open("a") as settings:
            settings.write(self.configuration)
        url = f"postgresql://{self.login}@127.0.0.1:{self.proxy.port}/stackmgr?target_session_attrs=primary"
        environment = {"PYTHONPATH": str(_SOURCE), "STACKMGR_DATABASE_URL": url, **self.environment}
        return Unit(self.folder, deploy, environment, port=self.port)

    def workload(self, seed: int, *, keeps: bool = False, lists: bool = True) -> Workload:
        port, keeps = self.client_port or self.service.port, keeps or self.tls is not None
        return Workload(seed, self.managers, port, tls=self.tls, keeps=keeps, lists=lists)

    def workers(self) -> list[psutil.Process]:
        return self.service.workers()

    def a_worker(self) -> psutil.Process:
        self.service.await_workers(WORKERS)
        worker: psutil.Process = self.chance.choice(self.workers())
        return worker

    def await_replacement(self, worker: psutil.Process) -> None:
        eventually(lambda: worker not in self.workers(), _REPLACED, "the worker has not ended")
        self.service.await_workers(WORKERS)

    def replace_server(self, server: FaultyPostgres, undo: ExitStack) -> None:
        """Lead the service to another server; *undo* ends that one when its time has come."""
        self._logs.append(self.server.read_log())
        self.server = server
        self.proxy.target = server.socket_path
        self.proxy.cut()
        self._standby.close()
        self._standby = undo

    def evidence(self) -> Evidence:
        logs = [*self._logs, self.service.log, *self.server.logs, self.server.read_log()]
        return Evidence(self.server.url(), self.managers, self.faults, logs)

    def close(self) -> None:
        self.service.close()
        self._standby.close()


@contextmanager
def staged(server: FaultyPostgres, seed: int, *prepare: Prepare | None) -> Iterator[Stage]:
    """Set a stage on *server*, which is well again afterwards.  Raises NoPlace where there can be none."""
    with TemporaryDirectory(prefix="stackmgr-faults-", dir=memory()) as folder, ExitStack() as undo:
        stage = Stage(server, Path(folder), seed)
        for each in filter(None, prepare):
            undo.enter_context(each(stage))
        stage.proxy = undo.enter_context(Proxy(stage.socket_path or stage.server.socket_path))
        undo.callback(stage.server.restore)
        stage.service = stage.make_service()
        undo.callback(stage.close)
        stage.service.start()
        yield stage


@contextmanager
def suspended(processes: Sequence[psutil.Process]) -> Iterator[None]:
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            process.resume()
