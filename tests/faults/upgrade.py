"""What an operator does to a service that is in use, as the runbook says: no client may notice.

Reloads, restarts one host after the other, an upgrade with a migration, and the way back.  No request may
fail or stay without a response, and what was acknowledged is there afterwards, once.
"""

import itertools
import os
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psycopg

from stackmgr.operate import migrations
from tests.faults.report import failure
from tests.faults.stage import NoPlace, secrets_in
from tests.faults.unit import Unit
from tests.support import history
from tests.support.clusters import new_database
from tests.support.history import Operation, Violation
from tests.support.nginx import NGINX, NginxProxy, nginx_before
from tests.support.psql import audit
from tests.support.releases import make_release, switch
from tests.support.server import send_request
from tests.support.workload import Workload, new_managers

_CLIENTS = 6
_PAUSE = 0.01
_SETTLE = 0.5
_PATIENCE = 60.0

_OLD, _NEW = "old", "new"
_MIGRATION = """
-- Made for a drill: what a later release may add.
SET LOCAL ROLE stackmgr_owner;
ALTER TABLE stackmgr.stacks ADD COLUMN drilled_at timestamptz;
CREATE TABLE stackmgr.drills (drill_id uuid PRIMARY KEY);
"""


@dataclass(frozen=True)
class Deployment:
    """Releases in *folder*, the instances that run the current one, and nginx before them."""

    folder: Path
    database_url: str
    instances: list[Unit]
    proxy: NginxProxy

    def use(self, release: str) -> None:
        """Make *release* the one that is started next, and taken at a reload."""
        switch(self.folder / "current", release)

    def command(self, release: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Run the operator's command of *release*."""
        return run_command(self.folder / release, self.database_url, *words)

    def tls(self) -> ssl.SSLContext:
        """Return the context of a client of nginx."""
        return ssl.create_default_context(cafile=self.proxy.folder / "tls/fullchain.pem")


def run_command(release: Path, database_url: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the operator's command of the release in a folder."""
    return subprocess.run(
        [sys.executable, "-m", "stackmgr", *words],
        env={**os.environ, "PYTHONPATH": str(release), "STACKMGR_DATABASE_URL": database_url},
        cwd=release.parent,
        check=False,
        capture_output=True,
        text=True,
        timeout=_PATIENCE,
    )


@contextmanager
def deployed(folder: Path, database_url: str, release: str) -> Iterator[Deployment]:
    """Run *release*, one of those in *folder*, on two hosts until the context ends."""
    switch(folder / "current", release)
    environment = {
        "PYTHONPATH": str(folder / "current"),
        "STACKMGR_DATABASE_URL": database_url,
        "STACKMGR_METRICS_DIR": "metrics",
        # The drill does not measure a slow machine.
        "STACKMGR_DATABASE_TIMEOUT": "20",
    }
    with ExitStack() as stack:
        instances = []
        for name in ("one", "two"):
            (folder / name).mkdir()
            instances.append(Unit(folder / name, folder / "current" / "deploy", environment))
            stack.callback(instances[-1].close)
            instances[-1].launch()
        for instance in instances:
            instance.await_readiness()
        (folder / "nginx").mkdir()
        proxy = stack.enter_context(
            nginx_before(folder / "nginx", *(instance.port for instance in instances))
        )
        yield Deployment(folder, database_url, instances, proxy)


_Act = Callable[[Deployment], None]


def reload_each(deployment: Deployment) -> None:
    for instance in deployment.instances:
        instance.check()
        instance.hang_up()


def restart_each(deployment: Deployment) -> None:
    """The next host's turn comes when this one is ready again."""
    for instance in deployment.instances:
        instance.stop()
        instance.start()


def migrate(deployment: Deployment) -> None:
    """Check, and migrate while the old release serves: the new one does not serve on the old schema."""
    checked = deployment.command(_NEW, "check")
    assert checked.returncode == 3
    assert "is not applied" in checked.stderr + checked.stdout
    migrated = deployment.command(_NEW, "migrate")
    assert migrated.returncode == 0, migrated.stderr
    time.sleep(_SETTLE)
    assert all(_OLD in says(instance) for instance in deployment.instances)


def upgrade(deployment: Deployment, replace: _Act) -> None:
    deployment.use(_NEW)
    replace(deployment)
    assert all(_NEW in says(instance) for instance in deployment.instances)
    assert not (found := audit(deployment.database_url)), found


def roll_back(deployment: Deployment, replace: _Act) -> None:
    """The schema stays as it is."""
    deployment.use(_OLD)
    replace(deployment)
    assert all(_OLD in says(instance) for instance in deployment.instances)
    assert all("the schema is newer" in instance.log for instance in deployment.instances)


def says(instance: Unit) -> str:
    """Return the message of this instance's 404, which distinguishes the releases."""
    return send_request(instance.port, "/", timeout=_PATIENCE)[1]


@dataclass
class Phase:
    """One kind of work, done so many times between two moments; what clients saw of it."""

    name: str
    times: int
    began: float
    ended: float
    operations: list[Operation] = field(default_factory=list)

    @property
    def failed(self) -> list[Operation]:
        return [operation for operation in self.operations if failure(operation)]


HEADINGS = ("drill", "times", "requests", "failed", "slowest response", "longest gap")


def row(phase: Phase) -> tuple[str, ...]:
    """Return the phase as one row under HEADINGS."""
    completed = sorted((o.completed, o.completed - o.sent) for o in phase.operations if o.status is not None)
    slowest = max((seconds for _, seconds in completed), default=0.0)
    gap = max((after - before for (before, _), (after, _) in itertools.pairwise(completed)), default=0.0)
    counts = (phase.times, len(phase.operations), len(phase.failed))
    return (phase.name, *map(str, counts), f"{slowest:.2f} s", f"{gap:.2f} s")


@dataclass
class UpgradeReport:
    """What came of the drill."""

    phases: list[Phase]
    violations: list[Violation]
    leaks: list[str]
    errors: list[str]

    def contradictions(self) -> list[str]:
        """Return, in words, what is wrong however slow the machine is."""
        found = [f"{violation.rule}: {violation.what}" for violation in self.violations]
        for phase in self.phases:
            found += [f"{phase.name}: {o.tag} ({o.kind}) got {failure(o)}: {o.body}" for o in phase.failed]
            if not any(operation.acknowledged for operation in phase.operations):
                found.append(f"{phase.name}: nothing was acknowledged, so nothing is proved")
        found += [f"{what} has come into a log" for what in self.leaks]
        return found + [f"a log has: {line}" for line in self.errors]


def run(
    server_url: str, seed: int, times: int, source: Path | None = None, pause: float = _PAUSE
) -> UpgradeReport:
    """Carry out the drill on a database of its own, reloads and restarts so many *times*.

    *source* is a checkout of the old release: without one, it is this one without a new migration.  *pause*
    is how long a client rests between two requests, in the mean.  Raises NoPlace.
    """
    if NGINX is None:
        raise NoPlace("nginx is not installed")
    with (
        tempfile.TemporaryDirectory(prefix="stackmgr-upgrade-") as name,
        new_database(server_url) as url,
    ):
        folder = Path(name)
        _make_releases(folder, source)
        migrated = run_command(folder / _OLD, url, "migrate")
        assert migrated.returncode == 0, migrated.stderr
        managers = new_managers(url)
        with deployed(folder, url, _OLD) as deployment:
            port = deployment.proxy.port
            workload = Workload(seed, managers, port, tls=deployment.tls(), keeps=True)
            workload.start(_CLIENTS, pause=pause)
            try:
                phases = [_act(deployment, *work) for work in _work(times) if work[1]]
            finally:
                workload.stop()
            logs = [instance.log for instance in deployment.instances]
        for phase in phases:
            phase.operations = [o for o in workload.operations if phase.began <= o.sent < phase.ended]
        with psycopg.connect(url) as connection:
            found = history.dump(connection, {manager.external_id for manager in managers})
        errors = [line for log in logs for line in log.splitlines() if '"level": "error"' in line]
        return UpgradeReport(
            phases, history.check(workload.operations, found), secrets_in(logs, managers), errors
        )


def _work(times: int) -> list[tuple[str, int, _Act]]:
    return [
        ("rolling reload", times, reload_each),
        ("rolling restart", times, restart_each),
        ("migration", 1, migrate),
        ("upgrade by reloads", 1, partial(upgrade, replace=reload_each)),
        ("rollback by reloads", 1, partial(roll_back, replace=reload_each)),
        ("upgrade by restarts", 1, partial(upgrade, replace=restart_each)),
        ("rollback by restarts", min(times, 1), partial(roll_back, replace=restart_each)),
    ]


def _act(deployment: Deployment, name: str, times: int, act: _Act) -> Phase:
    began = time.monotonic()
    time.sleep(_SETTLE)
    for _ in range(times):
        act(deployment)
    time.sleep(_SETTLE)
    return Phase(name, times, began, time.monotonic())


def _make_releases(folder: Path, source: Path | None) -> None:
    for release in (_OLD, _NEW):
        make_release(folder / release, f"Said by the {release} release.", source if release == _OLD else None)
    if source is None:
        version = migrations.available()[-1].version + 1
        (folder / _NEW / "sql" / "migrations" / f"{version:04d}_drill.sql").write_text(_MIGRATION)
