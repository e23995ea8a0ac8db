"""A long run in one setting: a soak that watches what processes use, then writes under mixed faults."""

import os
import signal
import time
from collections import defaultdict
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from statistics import median

import psutil

from tests.faults.cell import Bound, Cell, Prepare
from tests.faults.fronts import HANG, with_pgbouncer, with_unkey
from tests.faults.prober import repeated
from tests.faults.report import Report, judged
from tests.faults.runner import CELLS, inject
from tests.faults.stage import Stage, staged
from tests.support.postgres import FaultyPostgres
from tests.support.waiting import eventually
from tests.support.workload import Workload

_RELOAD_SECONDS = 60.0
_AT_MOST = 3600.0
_SAMPLE_SECONDS = 10.0
_WARM_UP = _MINUTE = 60.0
# What counts as flat: the last minute against the first.
_MORE_MEMORY = 1.05
_MORE = 2.0  # MB, descriptors or threads
_KINDS = ("MB", "descriptors", "threads")
SETTINGS: dict[str, Prepare | None] = {
    "plain": None, "verifier": with_unkey, "pgbouncer": with_pgbouncer,
    "reloads": None,  # SIGHUP each minute of the soak
}  # fmt: skip
_BOUND = Bound("500 503 cut refused", ready="may fail")


@dataclass(frozen=True)
class Plan:
    """Some seconds without faults, then faults until so many writes are acknowledged, within an hour."""

    setting: str
    seed: int
    writes: int
    soak_seconds: float = 0.0
    rest: float = 3.0
    clients: int = 96
    faults: tuple[str, ...] = ()


@dataclass
class Samples:
    """By role and kind, when and how much: the most that a process of the role used of it."""

    uses: dict[tuple[str, str], list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))

    def take(self, stage: Stage) -> None:
        for role, processes in (("master", [psutil.Process(stage.service.pid)]), ("worker", stage.workers())):
            found = []
            for process in processes:
                with suppress(psutil.NoSuchProcess), process.oneshot():
                    found.append((process.memory_info().rss / 1e6, process.num_fds(), process.num_threads()))
            for kind, values in zip(_KINDS, zip(*found, strict=True), strict=False):
                self.uses[role, kind].append((time.monotonic(), max(values)))

    def growth(self) -> list[str]:
        """Return, in words, what grew: descriptors and threads vary, so that all of the first half counts."""
        found = []
        for (role, kind), uses in self.uses.items():
            first = median(value for at, value in uses if at < uses[0][0] + _MINUTE)
            last = median(value for at, value in uses if at > uses[-1][0] - _MINUTE)
            half = uses[: (len(uses) + 1) // 2]
            before = first * _MORE_MEMORY if kind == "MB" else max(value for _, value in half)
            if last > before + _MORE:
                found.append(f"{role}: {kind} grew to {last:.4g}, over {before + _MORE:.4g}")
        return found


def run(plan: Plan, server: FaultyPostgres) -> Report:
    cell = Cell(f"endurance ({plan.setting})", "dies", lambda _: None, _BOUND)
    samples, failures = Samples(), []
    with staged(server, plan.seed, SETTINGS[plan.setting]) as stage:
        # A page has a hundred stacks, all of which would be in the record.
        workload = stage.workload(plan.seed, keeps=True, lists=False)
        workload.start(plan.clients)
        try:
            _soak(plan, stage, workload, samples)
            _inflict(plan, stage, workload)
        except AssertionError as ex:  # what was written until then is compared all the same
            failures.append(f"after {len(stage.faults)} faults: {ex}")
            stage.service.close()
        finally:
            workload.stop()
        stage.service.stop()
        # Faults may follow each other before the service has recovered: when it has, only cells measure.
        report = judged(cell, replace(stage.evidence(), faults=[]), workload, [])
        report.faults = len(stage.faults)
        report.problems += failures + samples.growth()
        return report


def _soak(plan: Plan, stage: Stage, workload: Workload, samples: Samples) -> None:
    began = time.monotonic()
    reloads = repeated(lambda: os.kill(stage.service.pid, signal.SIGHUP), _RELOAD_SECONDS)
    with reloads if plan.setting == "reloads" and plan.soak_seconds else nullcontext():
        while (elapsed := time.monotonic() - began) < plan.soak_seconds:
            time.sleep(min(_SAMPLE_SECONDS, plan.soak_seconds - elapsed))
            workload.check_running()
            if time.monotonic() - began > _WARM_UP:
                samples.take(stage)


def _inflict(plan: Plan, stage: Stage, workload: Workload) -> None:
    cells = {cell.name: cell for cell in CELLS.values() if cell.mixed}
    if plan.setting == "pgbouncer":  # it leads to one server
        del cells["primary-dies"]
    if plan.setting == "verifier":
        cells[HANG.name] = replace(HANG, lasts=1.5)
    deck: list[str] = []
    target, ends = workload.acknowledged + plan.writes, time.monotonic() + _AT_MOST
    while workload.acknowledged < target and time.monotonic() < ends:
        time.sleep(stage.chance.uniform(0.5, 1.5) * plan.rest)
        workload.check_running()
        if not deck:
            deck = sorted(plan.faults or cells)
            stage.chance.shuffle(deck)
        inject(cells[deck.pop()], stage)
    served = workload.acknowledged + plan.clients
    eventually(lambda: workload.acknowledged > served, message="full service did not return")
    assert workload.acknowledged >= target, f"only {workload.acknowledged} writes were acknowledged"
