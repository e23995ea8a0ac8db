"""A long run: a soak without faults, writes under faults, and the comparison with the database."""

import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import psycopg

from stackmgr.settings import Settings
from tests.bench import verifier
from tests.bench.requests import Manager as Verified
from tests.endurance import check, soak
from tests.endurance.client_process import ClientProcess, clients
from tests.endurance.clients import Summary
from tests.matrix.cell import Cell
from tests.matrix.cells import CELLS
from tests.matrix.stage import ENVIRONMENT, WORKERS, Stage, new_setup, secrets_in, staged
from tests.support.memory import memory
from tests.support.pgbouncer import PROGRAM, make_pooled_login, pgbouncer, socket_path
from tests.support.postgres import FaultyPostgres
from tests.support.repeating import repeated

SETTINGS = ("plain", "verifier", "pgbouncer", "reloads")
_VERIFIER_SECONDS = 0.005
_VERIFIER_HANG_SECONDS = 1.5
_RELOAD_SECONDS = 60.0
_HANG = "verifier-hang"
_ENVIRONMENT = ENVIRONMENT | {
    "STACKMGR_CONCURRENCY": str(Settings.concurrency),
    "STACKMGR_DATABASE_TIMEOUT": str(Settings.database_timeout),
}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """So many seconds without faults, the first *warm_up* of them not sampled; then writes under faults.

    The faults end once so many writes are acknowledged, or *at_most* seconds have passed.
    """

    setting: str
    seed: int
    writes: int
    soak_seconds: float = 0.0
    warm_up: float = 60.0
    rest: float = 3.0
    at_most: float = float("inf")
    connections: int = 96
    faults: tuple[str, ...] = ()


@dataclass
class Report:
    """What came of a run."""

    plan: Plan
    faults: Counter[str] = field(default_factory=Counter)
    soak_writes: int = 0
    soak_failures: int = 0
    writes: int = 0
    seconds: float = 0.0
    summary: Summary = field(default_factory=Summary)
    samples: soak.Samples = field(default_factory=soak.Samples)
    findings: check.Findings = field(default_factory=check.Findings)
    leaks: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def problems(self) -> list[str]:
        """Return, in words, what is wrong."""
        return [
            *self.failures,
            *self.findings.examples,
            *self.summary.violations,
            *self.samples.growth(),
            *(f"{what} has come into a log" for what in self.leaks),
        ]


def run(plan: Plan) -> Report:
    """Carry out a run on a database of its own."""
    report = Report(plan)
    with _staged(plan) as (stage, roles), tempfile.TemporaryDirectory(prefix="stackmgr-records-") as folder:
        recording = Path(folder) / "records"
        keys = [manager.api_key for manager in stage.managers]
        with clients(plan.seed, keys, plan.connections, stage.service.port, recording) as process:
            _soak(plan, stage, roles, process, report)
            report.soak_writes, report.soak_failures = process.acknowledged, process.failed
            began = time.monotonic()
            try:
                _inflict(plan, stage, roles, process, report)
            except AssertionError as ex:  # what was written until then is compared all the same
                report.failures.append(f"after {report.faults}: {ex}")
            report.seconds = time.monotonic() - began
            report.writes = process.acknowledged - report.soak_writes
            report.summary = process.stop()
        stage.service.stop()
        evidence = stage.evidence()
        report.leaks = secrets_in(evidence.logs, evidence.managers)
        external_ids = [manager.external_id for manager in stage.managers]
        with psycopg.connect(stage.server.url()) as connection:
            report.findings = check.compare(connection, recording, external_ids)
            connection.rollback()
    return report


_Faults = dict[str, Callable[[], None]]


def _inflict(plan: Plan, stage: Stage, roles: soak.Roles, process: ClientProcess, report: Report) -> None:
    faults: _Faults = {
        cell.name: lambda cell=cell: _inject(cell, stage)  # type: ignore[misc]
        for cell in CELLS.values()
        # PgBouncer leads to one server.
        if cell.mixed and not (plan.setting == "pgbouncer" and cell.name == "primary-dies")
    }
    if plan.setting == "verifier":
        faults[_HANG] = lambda: _hang(roles)
    deck: list[str] = []
    target, ends = process.acknowledged + plan.writes, time.monotonic() + plan.at_most
    while process.acknowledged < target and time.monotonic() < ends:
        time.sleep(stage.chance.uniform(0.5, 1.5) * plan.rest)
        if not deck:
            deck = sorted(plan.faults or faults)
            stage.chance.shuffle(deck)
        name = deck.pop()
        report.faults[name] += 1
        faults[name]()


def _inject(cell: Cell, stage: Stage) -> None:
    """Inject the fault once.  How soon the service is ready again, the matrix measures."""
    with cell.fault(stage):
        time.sleep(cell.lasts)
    stage.service.await_workers(WORKERS)


def _hang(roles: soak.Roles) -> None:
    """Suspend the verifier for longer than the service waits for it."""
    for process in roles()["verifier"]:
        process.suspend()
        try:
            time.sleep(_VERIFIER_HANG_SECONDS)
        finally:
            process.resume()


def _soak(plan: Plan, stage: Stage, roles: soak.Roles, process: ClientProcess, report: Report) -> None:
    if not plan.soak_seconds:
        return
    ends = time.monotonic() + plan.soak_seconds
    with ExitStack() as undo:
        if plan.setting == "reloads":
            undo.enter_context(_reloading(stage, report))
        time.sleep(plan.warm_up)
        report.samples = undo.enter_context(soak.sampled(roles))
        while time.monotonic() < ends:
            time.sleep(1)
            assert process.acknowledged >= 0


def _reloading(stage: Stage, report: Report) -> AbstractContextManager[None]:
    """Return a context in which SIGHUP is sent each minute."""

    def reload() -> None:
        os.kill(stage.service.pid, signal.SIGHUP)
        report.faults["reload in the soak"] += 1

    return repeated(reload, _RELOAD_SECONDS)


@contextmanager
def _staged(plan: Plan) -> Iterator[tuple[Stage, soak.Roles]]:
    """Run PostgreSQL, the service and what the setting needs; yield the processes by role too."""
    with ExitStack() as undo:
        folder = undo.enter_context(tempfile.TemporaryDirectory(prefix="stackmgr-endurance-", dir=memory()))
        server = undo.enter_context(FaultyPostgres(Path(folder) / "data"))
        server.prepare()
        setup = undo.enter_context(new_setup(server))
        setup.environment = dict(_ENVIRONMENT)
        beside: dict[str, list[psutil.Process]] = {}
        if plan.setting == "pgbouncer":
            make_pooled_login(server.url())
            url = undo.enter_context(pgbouncer(PROGRAM, server.url()))
            setup.login, setup.socket_path = "stackmgr_service", socket_path(url)
            beside["pgbouncer"] = [
                child for child in psutil.Process().children() if child.name() == PROGRAM.name
            ]
        if plan.setting == "verifier":
            accounts = [Verified(manager.external_id, manager.api_key, []) for manager in setup.managers]
            environment, pid = undo.enter_context(verifier.delayed(accounts, _VERIFIER_SECONDS))
            setup.environment |= environment
            beside["verifier"] = [psutil.Process(pid)]
        stage = undo.enter_context(staged(setup, plan.seed))

        def roles() -> Mapping[str, list[psutil.Process]]:
            master = psutil.Process(stage.service.pid)
            return {"master": [master], "worker": master.children(), **beside}

        yield stage, roles
