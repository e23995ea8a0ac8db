"""What an operator does to a service that is in use, as the runbook says: no client may notice.

Reloads, restarts one host after the other, an upgrade with a migration, and the way back.  No request may
fail or stay without a response, and what was acknowledged is there afterwards, once.
"""

import itertools
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psycopg

from stackmgr.operate import migrations
from tests.matrix.deployment import Deployment, deployed, run_command
from tests.matrix.stage import new_managers, secrets_in
from tests.support import history
from tests.support.clusters import new_database
from tests.support.history import Operation, Violation
from tests.support.psql import audit
from tests.support.releases import make_release
from tests.support.workload import Workload, kept_transport

NAME = "upgrade"
_CLIENTS = 6
_PAUSE = 0.01
_SETTLE = 0.5

_OLD, _NEW = "old", "new"
_MIGRATION = """
-- Made for a drill: what a later release may add.
SET LOCAL ROLE stackmgr_owner;
ALTER TABLE stackmgr.stacks ADD COLUMN drilled_at timestamptz;
CREATE TABLE stackmgr.drills (drill_id uuid PRIMARY KEY);
"""


_Act = Callable[[Deployment], None]


def reload_each(deployment: Deployment) -> None:
    for instance in deployment.instances:
        instance.reload()


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
    assert all(_OLD in instance.says() for instance in deployment.instances)


def upgrade(deployment: Deployment, replace: _Act) -> None:
    deployment.use(_NEW)
    replace(deployment)
    assert all(_NEW in instance.says() for instance in deployment.instances)
    assert not (found := audit(deployment.database_url)), found


def roll_back(deployment: Deployment, replace: _Act) -> None:
    """The schema stays as it is."""
    deployment.use(_OLD)
    replace(deployment)
    assert all(_OLD in instance.says() for instance in deployment.instances)
    assert all("the schema is newer" in instance.log for instance in deployment.instances)


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
        """Return the responses that a healthy service does not return."""
        return [o for o in self.operations if o.status is not None and (o.status >= 500 or o.status == 429)]

    @property
    def unanswered(self) -> list[Operation]:
        return [o for o in self.operations if o.status is None]

    @property
    def slowest(self) -> float:
        return max((o.completed - o.sent for o in self.operations if o.status is not None), default=0.0)

    @property
    def longest_gap(self) -> float:
        """The longest time without any response."""
        completed = sorted(o.completed for o in self.operations if o.status is not None)
        return max((b - a for a, b in itertools.pairwise(completed)), default=0.0)


HEADINGS = ("drill", "faults", "requests", "failed", "no response", "slowest response", "longest gap")


def row(phase: Phase) -> tuple[str, ...]:
    """Return the phase as one row under HEADINGS."""
    counts = (phase.times, len(phase.operations), len(phase.failed), len(phase.unanswered))
    return (phase.name, *map(str, counts), f"{phase.slowest:.2f} s", f"{phase.longest_gap:.2f} s")


@dataclass
class Report:
    """What came of the drill."""

    phases: list[Phase]
    violations: list[Violation]
    leaks: list[str]
    errors: list[str]

    def contradictions(self) -> list[str]:
        """Return, in words, what is wrong however slow the machine is."""
        found = [f"{violation.rule}: {violation.what}" for violation in self.violations]
        for phase in self.phases:
            found += [f"{phase.name}: {o.tag} ({o.kind}) got {o.status}: {o.body}" for o in phase.failed]
            found += [f"{phase.name}: {o.tag} ({o.kind}) got no response" for o in phase.unanswered]
            if not any(operation.acknowledged for operation in phase.operations):
                found.append(f"{phase.name}: nothing was acknowledged, so nothing is proved")
        found += [f"{what} has come into a log" for what in self.leaks]
        return found + [f"a log has: {line}" for line in self.errors]


def run(server_url: str, seed: int, times: int, source: Path | None = None, pause: float = _PAUSE) -> Report:
    """Carry out the drill on a database of its own, reloads and restarts so many *times*.

    *source* is a checkout of the old release: without one, it is this one without a new migration.  *pause*
    is how long a client rests between two requests, in the mean.
    """
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
            workload = Workload(seed, managers, kept_transport(deployment.connect))
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
        return Report(phases, history.check(workload.operations, found), secrets_in(logs, managers), errors)


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
