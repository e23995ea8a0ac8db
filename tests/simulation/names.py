"""The names by which production code and psycopg_pool reach time, threads, locks and descriptors.

`replaced` gives them the simulated ones for the length of one run.  No other code changes.
"""

import logging
import select
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import psycopg_pool.base
import psycopg_pool.pool
import psycopg_pool.sched

from stackmgr import scheduler, threads
from stackmgr.access.verifiers import last_use
from stackmgr.database import connection, pool, session, session_settings, shared_reads
from tests.simulation.kernel import Epoll, Kernel, Poll, module
from tests.simulation.threads import Event, Local, Lock, Queue, RLock, StartedThread, spawn
from tests.simulation.world import World

Names = Mapping[tuple[Any, str], Any]


def of_production(world: World, kernel: Kernel) -> Names:
    """Return the simulated names that every scenario needs, by module and attribute."""
    simulated = {
        "time": module(time, monotonic=world.monotonic, perf_counter=world.monotonic, sleep=world.block),
        "threading": module(
            threading,
            Lock=partial(Lock, world),
            Event=partial(Event, world),
            Thread=partial(StartedThread, world),
            get_ident=lambda: world.current.ident if world.current is not None else 0,
        ),
        "select": module(select, epoll=lambda: Epoll(kernel), poll=lambda: Poll(kernel)),
        "os": kernel.os(),
    }
    names: dict[tuple[Any, str], Any] = {
        (scheduler, "monotonic"): world.monotonic,
        (scheduler, "_this"): Local(world, scheduler=None),
        (threads, "atexit"): SimpleNamespace(register=world.at_exit.append),
        (last_use, "threading"): simulated["threading"],
    }
    for each in (scheduler, threads, connection, pool, session, session_settings, shared_reads):
        names |= {(each, name): simulated[name] for name in simulated if hasattr(each, name)}
    return names


def of_pool(world: World) -> Names:
    names: dict[tuple[Any, str], Any] = {
        (psycopg_pool.pool, "Queue"): partial(Queue, world),
        (psycopg_pool.pool, "spawn"): lambda call, args=(), name="": spawn(
            world, lambda: call(*args), name or f"thread {next(world.numbers)}"
        ),
        (psycopg_pool.pool, "sleep"): world.block,
        (psycopg_pool.pool, "current_thread_name"): lambda: world.current.name if world.current else "",
        (psycopg_pool.base, "random"): world.random.random,
    }
    for each in (psycopg_pool.pool, psycopg_pool.sched):
        names |= {(each, "Event"): partial(Event, world), (each, "Lock"): partial(RLock, world)}
    for each in (psycopg_pool.pool, psycopg_pool.sched, psycopg_pool.base):
        names[each, "monotonic"] = world.monotonic
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
