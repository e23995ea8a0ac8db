"""What a run costs, process tree by process tree, and what else the machine did in the meantime."""

import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import psutil

# Of all the machine's time, what others may use before a run counts as disturbed.
TOLERATED = 0.05


@dataclass
class Cost:
    """CPU seconds of a run, apart, and the shares of the machine that went to others and to its host."""

    service: float = 0.0
    postgres: float = 0.0
    load: float = 0.0
    others: float = 0.0
    steal: float = 0.0

    @property
    def noise(self) -> float:
        """What share of the machine the run did not have."""
        return self.others + self.steal

    @property
    def disturbed(self) -> bool:
        """Whether that was so much that the run should not count."""
        return self.noise > TOLERATED


def tree(pid: int | None) -> list[psutil.Process]:
    """Return a process and its descendants; none for None."""
    if pid is None:
        return []
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def cpu_seconds(pid: int | None) -> float:
    """Return what a process tree has used so far, its ended members included."""
    total = 0.0
    for process in tree(pid):
        with suppress(psutil.NoSuchProcess):
            used = process.cpu_times()
            total += used.user + used.system + used.children_user + used.children_system
    return total


def resident_mb(pid: int) -> float:
    """Return the resident memory of a tree in MB."""
    total: int = sum(process.memory_info().rss for process in tree(pid))
    return total / 1e6


def _own() -> float:
    """Return what this process and the load generators it has waited for have used."""
    parts = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(part.ru_utime + part.ru_stime for part in parts)


@contextmanager
def measured(service: int | None, postgres: int | None, helpers: list[int]) -> Iterator[Cost]:
    """Fill in the Cost of what happens in the context; the processes are named by the ids of their roots.

    What the *helpers* use counts as load.

    The service must not be started or ended in the context: what has been waited for counts as load.
    Interrupts count for no process; they are mostly those of our own packets.
    """
    cost = Cost()

    def used() -> tuple[float, ...]:
        return cpu_seconds(service), cpu_seconds(postgres), _own() + sum(map(cpu_seconds, helpers))

    started, machine = time.monotonic(), psutil.cpu_times()
    before = used()
    yield cost
    after = used()
    now = psutil.cpu_times()
    cost.service, cost.postgres, cost.load = (b - a for a, b in zip(before, after, strict=True))
    available = (time.monotonic() - started) * (os.cpu_count() or 1)
    busy = sum(getattr(now, kind) - getattr(machine, kind) for kind in ("user", "nice", "system"))
    cost.steal = (now.steal - machine.steal) / available
    cost.others = max(0.0, busy - cost.service - cost.postgres - cost.load) / available
