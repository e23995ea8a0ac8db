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
        """Return, in words, what is not flat."""
        found = []
        for role in self.uses:
            first, last = self.minutes(role)
            bounds = (first[0] * _MORE_MEMORY + _MORE_MEGABYTES, *(use + _MORE_HANDLES for use in first[1:]))
            for name, before, after, bound in zip(
                ("memory in MB", "descriptors", "threads"), first, last, bounds, strict=True
            ):
                if after > bound:
                    found.append(f"{role}: {name} grew from {before:.4g} to {after:.4g}")
        return found

    def table(self) -> list[str]:
        """Return a line for each role."""
        lines = []
        for role, uses in self.uses.items():
            first, last = self.minutes(role)
            seconds = uses[-1].at - uses[0].at
            pairs = [f"{before:.4g} → {after:.4g}" for before, after in zip(first, last, strict=True)]
            lines.append(
                f"{role}, {seconds:.0f} s: RSS {pairs[0]} MB, descriptors {pairs[1]}, threads {pairs[2]}"
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
