"""What the processes of a service use: resident memory, descriptors and threads, sampled while it serves."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from statistics import median

import psutil

INTERVAL_SECONDS = 10.0
_MINUTE = 60.0
# What counts as flat: the last minute against the first.
_MORE_MEMORY = 1.05
_MORE_MEGABYTES = 2.0
_MORE_HANDLES = 2

# Processes by role: "master", "worker", …
Roles = Callable[[], Mapping[str, Sequence[psutil.Process]]]


@dataclass(frozen=True)
class Use:
    """The most that a process of one role used at a moment."""

    at: float
    megabytes: float
    descriptors: int
    threads: int


@dataclass
class Samples:
    """The samples of each role, in order."""

    uses: dict[str, list[Use]] = field(default_factory=lambda: defaultdict(list))

    def take(self, roles: Roles) -> None:
        for role, processes in roles().items():
            found = []
            for process in processes:
                with suppress(psutil.NoSuchProcess), process.oneshot():
                    memory = process.memory_info().rss / 1e6
                    found.append((memory, process.num_fds(), process.num_threads()))
            if found:
                memories, descriptors, threads = zip(*found, strict=True)
                use = Use(time.monotonic(), max(memories), max(descriptors), max(threads))
                self.uses[role].append(use)

    def minutes(self, role: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return the medians of megabytes, descriptors and threads, of the first and of the last minute."""
        uses = self.uses[role]
        first = [use for use in uses if use.at < uses[0].at + _MINUTE]
        last = [use for use in uses if use.at > uses[-1].at - _MINUTE]
        return _medians(first), _medians(last)

    def growth(self) -> list[str]:
        """Return, in words, what is not flat.

        How many descriptors and threads are in use varies with the load: what grows is above all of the
        first half.
        """
        found = []
        for role, uses in self.uses.items():
            (before, *_), last = self.minutes(role)
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

    def table(self) -> list[str]:
        """Return a line for each role, with the medians of each minute."""
        lines = []
        for role, uses in self.uses.items():
            minutes: dict[int, list[Use]] = defaultdict(list)
            for use in uses:
                minutes[int((use.at - uses[0].at) // _MINUTE)].append(use)
            columns = zip(*map(_medians, minutes.values()), strict=True)
            named = zip(("RSS in MB", "descriptors", "threads"), columns, strict=True)
            lines.append(
                f"{role}: "
                + "; ".join(f"{name} {' '.join(f'{use:.4g}' for use in all_)}" for name, all_ in named)
            )
        return lines


def _medians(uses: Sequence[Use]) -> tuple[float, ...]:
    columns = zip(*((use.megabytes, use.descriptors, use.threads) for use in uses), strict=True)
    return tuple(float(median(column)) for column in columns)


@contextmanager
def sampled(roles: Roles, interval: float = INTERVAL_SECONDS) -> Iterator[Samples]:
    """Take samples until the context ends."""
    samples, ended = Samples(), threading.Event()

    def work() -> None:
        while not ended.wait(interval):
            samples.take(roles)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield samples
    finally:
        ended.set()
        thread.join()
