"""The load generator, wrk, and what a run costs, process tree by process tree."""

import json
import os
import resource
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import psutil

WRK = shutil.which("wrk")
_TIMEOUT_SECONDS = 10  # a request that takes longer counts as an error
_GRACE_SECONDS = 60  # how much longer than its run the load generator may take


@dataclass(frozen=True)
class Load:
    """The outcome of a run.  Latencies are in milliseconds; errors are counted, of any kind."""

    requests: int
    seconds: float
    p50: float
    p99: float
    errors: int

    @property
    def rate(self) -> float:
        return self.requests / self.seconds


def wrk(port: int, prepared: Path, connections: int, seconds: int) -> Load:
    """Send prepared requests over kept connections, each the next one once it has a response.

    One thread of wrk is enough for several times what the service can do, and takes one core at most.
    """
    command = [
        *(WRK or "wrk", "--threads=1", f"--connections={connections}", f"--duration={seconds}s"),
        *(f"--timeout={_TIMEOUT_SECONDS}s", f"--script={Path(__file__).with_name('requests.lua')}"),
        *(f"http://127.0.0.1:{port}/", "--", str(prepared), uuid4().hex[:12]),
    ]
    limit = seconds + _GRACE_SECONDS
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit)
    if ended.returncode != 0:
        raise RuntimeError(f"wrk: {(ended.stderr or ended.stdout)[-2000:]}")
    said = json.loads(ended.stdout.splitlines()[-1])
    errors = said["refused"] + said["broken"]
    return Load(said["requests"], said["seconds"], said["p50"], said["p99"], errors)


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
        return self.noise > TOLERATED


def _tree(pid: int) -> list[psutil.Process]:
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def _cpu_seconds(pid: int | None) -> float:
    total = 0.0
    for process in _tree(pid) if pid is not None else []:
        with suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:4])  # user, system, and both of its ended children
    return total


def resident_mb(pid: int) -> float:
    total: int = sum(process.memory_info().rss for process in _tree(pid))
    return total / 1e6


def _own_seconds() -> float:
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
