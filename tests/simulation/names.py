"""The names by which production code and psycopg_pool reach time, threads, locks and descriptors.

`replaced` gives them the simulated ones for the length of one run.  No other code changes.
"""

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import psycopg_pool.base
import psycopg_pool.pool
import psycopg_pool.sched

from stackmgr import scheduler
from stackmgr.access.verifiers import last_use
from stackmgr.database import connection, pool, session, session_settings, shared_reads
from tests.simulation.kernel import Kernel, Os, Select
from tests.simulation.threads import Event, Local, Queue, RLock, StartedThread, Threading
from tests.simulation.world import World

Names = Mapping[tuple[Any, str], Any]


class Time:
    """The module `time`."""

    def __init__(self, world: World) -> None:
        self.monotonic = self.perf_counter = world.monotonic
        self.sleep = world.sleep

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def of_production(world: World, kernel: Kernel) -> dict[tuple[ModuleType, str], Any]:
    """Return the simulated names that every scenario needs, by module and attribute."""
    time, threading, select, os = Time(world), Threading(world), Select(kernel), Os(kernel)
    names: dict[tuple[ModuleType, str], Any] = {
        (scheduler, "monotonic"): world.monotonic,
        (scheduler, "_this"): Local(world, scheduler=None),
        (scheduler, "atexit"): SimpleNamespace(register=world.at_exit.append),
        (last_use, "threading"): threading,
    }
    for module in (scheduler, connection, pool, session, session_settings, shared_reads):
        for name, simulated in {"time": time, "threading": threading, "select": select, "os": os}.items():
            if hasattr(module, name):
                names[module, name] = simulated
    return names


def of_pool(world: World) -> dict[tuple[ModuleType, str], Any]:
    """Return the simulated names of psycopg_pool."""

    def spawn(call: Any, args: tuple[Any, ...] = (), name: str | None = None) -> Any:
        thread = StartedThread(world, call, args, name)
        thread.start_surely()
        return thread

    def gather(*threads: Any, timeout: float | None = None, timeout_hint: str = "") -> None:
        for thread in threads:
            thread.join(timeout)

    names: dict[tuple[ModuleType, str], Any] = {
        (psycopg_pool.pool, "Event"): lambda: Event(world),
        (psycopg_pool.pool, "Lock"): lambda: RLock(world),
        (psycopg_pool.pool, "Queue"): lambda: Queue(world),
        (psycopg_pool.pool, "spawn"): spawn,
        (psycopg_pool.pool, "gather"): gather,
        (psycopg_pool.pool, "sleep"): world.sleep,
        (psycopg_pool.pool, "current_thread_name"): lambda: world.current.name if world.current else "",
        (psycopg_pool.sched, "Event"): lambda: Event(world),
        (psycopg_pool.sched, "Lock"): lambda: RLock(world),
        (psycopg_pool.base, "random"): world.random.random,
    }
    for module in (psycopg_pool.pool, psycopg_pool.sched, psycopg_pool.base):
        names[module, "monotonic"] = world.monotonic
    return names


@contextmanager
def replaced(names: Names) -> Iterator[None]:
    """Replace *names* in the body, and log nothing there."""
    before = {place: getattr(*place) for place in names}
    disabled = logging.root.manager.disable
    logging.disable()
    try:
        for (owner, name), simulated in names.items():
            setattr(owner, name, simulated)
        yield
    finally:
        for (owner, name), real in before.items():
            setattr(owner, name, real)
        logging.disable(disabled)
