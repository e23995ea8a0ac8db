"""What a run costs, process tree by process tree, and what else the machine did in the meantime."""

import os
import resource
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import psutil

# Of all the machine's time, what others may use before a run counts as disturbed.
TOLERATED = 0.05


@dataclass
class Cost:
    """CPU seconds of a run, and the share of the machine that others and its host took."""

    service: float = 0.0
    postgres: float = 0.0
    load: float = 0.0
    noise: float = 0.0

    @property
    def disturbed(self) -> bool:
        """Whether others took so much that the run should not count."""
        return self.noise > TOLERATED


def _tree(pid: int) -> list[psutil.Process]:
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def _cpu_seconds(pid: int | None) -> float:
    """Return what a process tree has used so far, its ended members included; for None, nothing."""
    total = 0.0
    for process in _tree(pid) if pid is not None else []:
        with suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:4])  # user, system, and both of its ended children
    return total


def resident_mb(pid: int) -> float:
    """Return the resident memory of a tree in MB."""
    total: int = sum(process.memory_info().rss for process in _tree(pid))
    return total / 1e6


def _own_seconds() -> float:
    """Return what this process and the load generators it has waited for have used."""
    parts = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(part.ru_utime + part.ru_stime for part in parts)


@contextmanager
def measured(service: int, postgres: int | None, helpers: Sequence[int] = ()) -> Iterator[Cost]:
    """Fill in the Cost of what happens in the context; the processes are named by the ids of their roots.

    What the *helpers* use counts as load, and what has been waited for: the service must not be started or
    ended in the context.  Interrupts count for no process; they are mostly those of our own packets.
    """
    cost = Cost()

    def used() -> tuple[float, ...]:
        load = _own_seconds() + sum(map(_cpu_seconds, helpers))
        return _cpu_seconds(service), _cpu_seconds(postgres), load

    started, machine, before = time.monotonic(), psutil.cpu_times(), used()
    yield cost
    after, now = used(), psutil.cpu_times()
    cost.service, cost.postgres, cost.load = (b - a for a, b in zip(before, after, strict=True))
    available = (time.monotonic() - started) * (os.cpu_count() or 1)
    busy = sum(getattr(now, kind) - getattr(machine, kind) for kind in ("user", "nice", "system"))
    others = max(0.0, busy - cost.service - cost.postgres - cost.load)
    cost.noise = (others + now.steal - machine.steal) / available
