"""A long run in one setting: a soak that watches what processes use, then writes under mixed faults."""

import os
import signal
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from statistics import median

import psutil

from stackmgr.settings import Settings
from tests.faults.cell import Bound, Cell, Prepare
from tests.faults.cells import CELLS
from tests.faults.fronts import with_pgbouncer
from tests.faults.report import Report, judged
from tests.faults.runner import inject
from tests.faults.stage import Setup, Stage, new_setup, staged
from tests.faults.verifier import hang, with_unkey
from tests.support.postgres import FaultyPostgres
from tests.support.repeating import repeated
from tests.support.waiting import eventually
from tests.support.workload import Workload

_RELOAD_SECONDS = 60.0
_AT_MOST = 3600.0
_SAMPLE_SECONDS = 10.0
_MINUTE = 60.0
# What counts as flat: the last minute against the first.
_MORE_MEMORY = 1.05
_MORE_MEGABYTES = 2.0
_MORE_HANDLES = 2


@contextmanager
def _by_default(setup: Setup) -> Iterator[None]:
    """Give the service its default settings."""
    setup.environment["STACKMGR_CONCURRENCY"] = str(Settings.concurrency)
    yield


SETTINGS: dict[str, Prepare] = {
    "plain": lambda _: nullcontext(),
    "verifier": with_unkey,
    "pgbouncer": with_pgbouncer,
    "reloads": lambda _: nullcontext(),  # SIGHUP each minute of the soak
}
_HANG = Cell("verifier", "hangs", hang, lasts=1.5)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """So many seconds without faults, the first *warm_up* of them not sampled; then writes under faults.

    The faults end once so many writes are acknowledged, for which there is an hour.
    """

    setting: str
    seed: int
    writes: int
    soak_seconds: float = 0.0
    warm_up: float = 60.0
    rest: float = 3.0
    clients: int = 96
    faults: tuple[str, ...] = ()


@dataclass(frozen=True)
class Use:
    """The most that a process of one role used at a moment."""

    at: float
    megabytes: float
    descriptors: int
    threads: int


@dataclass
class Samples:
    """What the processes used, by role, in order."""

    uses: dict[str, list[Use]] = field(default_factory=lambda: defaultdict(list))

    def take(self, stage: Stage) -> None:
        master = psutil.Process(stage.service.pid)
        for role, processes in {"master": [master], "worker": stage.workers()}.items():
            found = []
            for process in processes:
                with suppress(psutil.NoSuchProcess), process.oneshot():
                    found.append((process.memory_info().rss / 1e6, process.num_fds(), process.num_threads()))
            if found:
                self.uses[role].append(Use(time.monotonic(), *map(max, zip(*found, strict=True))))

    def growth(self) -> list[str]:
        """Return, in words, what is not flat.

        How many descriptors and threads are in use varies with the load: what grows is above all of the
        first half.
        """
        found = []
        for role, uses in self.uses.items():
            (before, *_), last = self._ends(role)
            half = uses[: (len(uses) + 1) // 2]
            bounds = {
                "memory in MB": (last[0], before * _MORE_MEMORY + _MORE_MEGABYTES),
                "descriptors": (last[1], max(use.descriptors for use in half) + _MORE_HANDLES),
                "threads": (last[2], max(use.threads for use in half) + _MORE_HANDLES),
            }
            for name, (after, bound) in bounds.items():
                if after > bound:
                    found.append(f"{role}: {name} grew to {after:.4g}, over {bound:.4g}")
        return found

    def lines(self) -> list[str]:
        """Return a line for each role, with the medians of the first and the last minute."""
        named = ("MB", "descriptors", "threads")
        lines = []
        for role in self.uses:
            ends = zip(named, *self._ends(role), strict=True)
            lines.append(
                f"{role}: " + ", ".join(f"{name} {first:.4g} to {last:.4g}" for name, first, last in ends)
            )
        return lines

    def _ends(self, role: str) -> tuple[list[float], list[float]]:
        """Return the medians of megabytes, descriptors and threads, of the first and of the last minute."""
        uses = self.uses[role]
        first = [use for use in uses if use.at < uses[0].at + _MINUTE]
        last = [use for use in uses if use.at > uses[-1].at - _MINUTE]
        names = ("megabytes", "descriptors", "threads")
        before, after = (
            [float(median(getattr(use, name) for use in part)) for name in names] for part in (first, last)
        )
        return before, after


def run(plan: Plan, server: FaultyPostgres) -> tuple[Report, Samples]:
    """Carry out a run.  Raises NoPlace where the setting cannot be."""
    cell = Cell(f"endurance ({plan.setting})", "dies", lambda _: nullcontext(), _BOUND)
    samples, failures = Samples(), []
    with ExitStack() as undo:
        setup = undo.enter_context(new_setup(server))
        for prepare in (_by_default, SETTINGS[plan.setting]):
            undo.enter_context(prepare(setup))
        stage = undo.enter_context(staged(setup, plan.seed))
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
        return report, samples


_BOUND = Bound("500 503 cut refused", ready="may fail", live=None, slowest=None)


def _soak(plan: Plan, stage: Stage, workload: Workload, samples: Samples) -> None:
    """Let clients go on without a fault, and take samples once the service is warm."""
    if not plan.soak_seconds:
        return
    began = time.monotonic()
    reloads = repeated(lambda: os.kill(stage.service.pid, signal.SIGHUP), _RELOAD_SECONDS)
    with reloads if plan.setting == "reloads" else nullcontext():
        while (elapsed := time.monotonic() - began) < plan.soak_seconds:
            time.sleep(min(_SAMPLE_SECONDS, plan.soak_seconds - elapsed))
            workload.check_running()
            if time.monotonic() - began > plan.warm_up:
                samples.take(stage)


def _inflict(plan: Plan, stage: Stage, workload: Workload) -> None:
    """Inject the mixed faults one after the other, shuffled anew each time all have had their turn."""
    cells = {cell.name: cell for cell in CELLS.values() if cell.mixed}
    if plan.setting == "pgbouncer":  # it leads to one server
        del cells["primary-dies"]
    if plan.setting == "verifier":
        cells[_HANG.name] = _HANG
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
