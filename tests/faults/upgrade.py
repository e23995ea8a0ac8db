"""The runbook's upgrade of a service in use: no request may fail or be lost."""

import os
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from stackmgr.operate import migrations
from tests.faults.cell import Bound, Cell
from tests.faults.report import HEADINGS, Report, failure, judged, print_headings, print_row
from tests.faults.stage import Evidence, NoPlace
from tests.faults.unit import Unit
from tests.support.clusters import new_database
from tests.support.nginx import NGINX, nginx_before
from tests.support.processes import completed
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
    """Releases in *folder*, the hosts that run the current one, and nginx before them, on *port*."""

    folder: Path
    database_url: str
    hosts: list[Unit]
    port: int
    tls: ssl.SSLContext

    def run_only(self, release: str) -> bool:
        return all(release in send_request(host.port, "/", timeout=_PATIENCE)[1] for host in self.hosts)


def _command(release: Path, database_url: str, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(release), "STACKMGR_DATABASE_URL": database_url}
    command = [sys.executable, "-m", "stackmgr", *words]
    return completed(command, env=environment, cwd=release.parent)


@contextmanager
def _deployed(folder: Path, database_url: str) -> Iterator[Deployment]:
    switch(folder / "current", _OLD)
    environment = {
        "PYTHONPATH": str(folder / "current"), "STACKMGR_DATABASE_URL": database_url,
        "STACKMGR_METRICS_DIR": "metrics",
        "STACKMGR_DATABASE_TIMEOUT": "20",  # the drill does not measure a slow machine
    }  # fmt: skip
    with ExitStack() as stack:
        hosts = []
        for name in ("one", "two", "nginx"):
            (folder / name).mkdir()
        for name in ("one", "two"):
            hosts.append(Unit(folder / name, folder / "current" / "deploy", environment))
            stack.callback(hosts[-1].close)
            hosts[-1].start()
        ports = [host.port for host in hosts]
        proxy = stack.enter_context(nginx_before(folder / "nginx", *ports))
        tls = ssl.create_default_context(cafile=proxy.folder / "tls/fullchain.pem")
        yield Deployment(folder, database_url, hosts, proxy.port, tls)


_Act = Callable[[Deployment], None]


def _reload_each(deployment: Deployment) -> None:
    for host in deployment.hosts:
        host.check()
        host.hang_up()


def _restart_each(deployment: Deployment) -> None:
    """The next host's turn comes when this one is ready again."""
    for host in deployment.hosts:
        host.stop()
        host.start()


def _migrate(deployment: Deployment) -> None:
    """Check, and migrate while the old release serves: the new one does not serve on the old schema."""
    new = partial(_command, deployment.folder / _NEW, deployment.database_url)
    checked = new("check")
    assert checked.returncode == 3
    assert "is not applied" in checked.stderr + checked.stdout
    migrated = new("migrate")
    assert migrated.returncode == 0, migrated.stderr
    time.sleep(_SETTLE)
    assert deployment.run_only(_OLD)


def _switch(deployment: Deployment, release: str, act: _Act) -> None:
    """Upgrade, or roll back: the schema stays as it is."""
    switch(deployment.folder / "current", release)
    act(deployment)
    assert deployment.run_only(release)
    if release == _OLD:
        assert all("the schema is newer" in host.log for host in deployment.hosts)
    assert not (found := audit(deployment.database_url)), found


def run(server_url: str, seed: int, times: int, source: Path | None = None, pause: float = _PAUSE) -> Report:
    """Carry out the drill on a database of its own, reloads and restarts so many *times*.  Raises NoPlace.

    *source* is a checkout of the old release: without one, it is this one without a new migration.
    """
    if NGINX is None:
        raise NoPlace("nginx is not installed")
    with tempfile.TemporaryDirectory(prefix="stackmgr-upgrade-") as name, new_database(server_url) as url:
        folder = Path(name)
        _make_releases(folder, source)
        migrated = _command(folder / _OLD, url, "migrate")
        assert migrated.returncode == 0, migrated.stderr
        managers = new_managers(url)
        with _deployed(folder, url) as deployment:
            workload = Workload(seed, managers, deployment.port, tls=deployment.tls, keeps=True)
            workload.start(_CLIENTS, pause=pause)
            try:
                done = [_carry_out(deployment, *work) for work in _work(times) if work[1]]
            finally:
                workload.stop()
            logs = [host.log for host in deployment.hosts]
        cell = Cell("upgrade", "is slow", lambda _: None, Bound())
        report = judged(cell, Evidence(url, managers, [], logs), workload, [])
        report.faults = len(done)
        print()
        print_headings("drill", "times", "requests", "slowest response")
        for what, count, began, ended in done:
            operations = [o for o in workload.operations if began <= o.sent < ended]
            failed = (f"{o.tag} ({o.kind}) got {failure(o)}: {o.body}" for o in operations if failure(o))
            report.problems += [f"{what}: {problem}" for problem in failed]
            if not any(operation.acknowledged for operation in operations):
                report.problems.append(f"{what}: nothing was acknowledged, so nothing is proved")
            slowest = max((o.completed - o.sent for o in operations if o.status is not None), default=0.0)
            print_row(what, count, len(operations), f"{slowest:.2f} s")
        print()
        print_headings(*HEADINGS)
        errors = [line for log in logs for line in log.splitlines() if '"level": "error"' in line]
        report.problems += [f"a log has: {line}" for line in errors]
        return report


def _work(times: int) -> list[tuple[str, int, _Act]]:
    return [
        ("rolling reload", times, _reload_each), ("rolling restart", times, _restart_each),
        ("migration", 1, _migrate),
        ("upgrade by reloads", 1, partial(_switch, release=_NEW, act=_reload_each)),
        ("rollback by reloads", 1, partial(_switch, release=_OLD, act=_reload_each)),
        ("upgrade by restarts", 1, partial(_switch, release=_NEW, act=_restart_each)),
        ("rollback by restarts", min(times, 1), partial(_switch, release=_OLD, act=_restart_each)),
    ]  # fmt: skip


def _carry_out(deployment: Deployment, name: str, times: int, act: _Act) -> tuple[str, int, float, float]:
    began = time.monotonic()
    time.sleep(_SETTLE)
    for _ in range(times):
        act(deployment)
    time.sleep(_SETTLE)
    return name, times, began, time.monotonic()


def _make_releases(folder: Path, source: Path | None) -> None:
    for release in (_OLD, _NEW):
        make_release(folder / release, f"Said by the {release} release.", source if release == _OLD else None)
    if source is None:
        version = migrations.available()[-1].version + 1
        (folder / _NEW / "sql" / "migrations" / f"{version:04d}_drill.sql").write_text(_MIGRATION)
