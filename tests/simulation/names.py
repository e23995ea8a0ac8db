"""Simulated time, locks, queues and threads, and the names by which production code reaches them."""

import logging
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import psycopg_pool.base
import psycopg_pool.pool
import psycopg_pool.sched

from stackmgr import scheduler, threads
from stackmgr.access.verifiers import database
from stackmgr.database import connection, conninfo, pool, round_trips, session
from tests.simulation.kernel import Epoll, Kernel, Poll, module
from tests.simulation.world import Thread, World, asker

Names = Mapping[tuple[Any, str], Any]


class Lock:
    """A lock that is not reentrant; each use may pre-empt the thread."""

    def __init__(self, world: World) -> None:
        self.world, self.count = world, 0
        self.owner: Thread | None = None
        self.waiting: deque[Thread] = deque()

    def acquire(self) -> bool:
        world = self.world
        world.preempt()
        while self.owner is not None and world.current is not None:
            world.wait_in(self.waiting, None, is_lock=True)
        self.owner = world.current
        return True

    def release(self) -> None:
        self.owner = None
        self.world.wake_one(self.waiting)
        if not self.world.is_over:
            self.world.preempt()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class RLock(Lock):
    def acquire(self) -> bool:
        if self.owner is None or self.owner is not self.world.current:
            return super().acquire()
        self.count += 1
        return True

    def release(self) -> None:
        if self.count:
            self.count -= 1
        else:
            super().release()


class Event:
    def __init__(self, world: World) -> None:
        self.world = world
        self.flag = False
        self.waiting: list[Thread] = []

    def set(self) -> None:
        self.flag = True
        self.world.wake_all(self.waiting)
        self.world.preempt()

    def clear(self) -> None:
        self.flag = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self.flag:
            self.world.wait_in(self.waiting, timeout)
        return self.flag


class Queue:
    def __init__(self, world: World) -> None:
        self.world = world
        self.items: deque[Any] = deque()
        self.waiting: deque[Thread] = deque()

    def put_nowait(self, item: object) -> None:
        self.items.append(item)
        self.world.wake_one(self.waiting)
        self.world.preempt()

    put = put_nowait

    def get(self) -> Any:
        while not self.items:
            self.world.wait_in(self.waiting, None)
        return self.items.popleft()


def spawn(world: World, call: Callable[[], object], name: str) -> Thread:
    thread = world.start(name, call)
    world.preempt()
    return thread


class StartedThread:
    def __init__(self, world: World, target, name: str | None = None, *, daemon: bool) -> None:
        self._world, self._call = world, target
        self._name = name or f"thread {next(world.numbers)}"

    def start(self) -> None:
        if self._world.chance("no more threads", asker()):
            raise RuntimeError("can't start new thread")
        spawn(self._world, self._call, self._name)


class Local:
    """An instance of a `threading.local` whose attributes are those of the current thread, or *default*."""

    def __init__(self, world: World, **default: object) -> None:
        self.__dict__["_world"] = world
        self.__dict__["_default"] = default

    def __getattr__(self, name: str) -> Any:
        current = self._world.current
        default = self._default[name]
        return default if current is None else current.locals.get(name, default)

    def __setattr__(self, name: str, value: object) -> None:
        self._world.current.locals[name] = value


def simulated(world: World, kernel: Kernel) -> Names:
    def start(call: Callable[..., object], args: tuple[Any, ...] = (), name: str = "") -> Thread:
        return spawn(world, lambda: call(*args), name or f"thread {next(world.numbers)}")

    modules = {
        "time": module(time, monotonic=world.monotonic, perf_counter=world.monotonic, sleep=world.block),
        "threading": module(
            threading, Lock=partial(Lock, world), Event=partial(Event, world),
            Thread=partial(StartedThread, world),
            get_ident=lambda: world.current.ident if world.current is not None else 0,
        ),
        "select": module(select, epoll=lambda: Epoll(kernel), poll=lambda: Poll(kernel)), "os": kernel.os(),
    }  # fmt: skip
    names: dict[tuple[Any, str], Any] = {
        (scheduler, "monotonic"): world.monotonic, (scheduler, "_this"): Local(world, scheduler=None),
        (threads, "atexit"): SimpleNamespace(register=world.at_exit.append),
        (database, "threading"): modules["threading"], (psycopg_pool.pool, "Queue"): partial(Queue, world),
        (psycopg_pool.pool, "spawn"): start, (psycopg_pool.pool, "sleep"): world.block,
        (psycopg_pool.pool, "current_thread_name"): lambda: world.current.name if world.current else "",
        (psycopg_pool.base, "random"): world.random.random,
    }  # fmt: skip
    for each in (scheduler, threads, connection, conninfo, pool, round_trips, session):
        names |= {(each, name): modules[name] for name in modules if hasattr(each, name)}
    for each in (psycopg_pool.pool, psycopg_pool.sched):
        names |= {(each, "Event"): partial(Event, world), (each, "Lock"): partial(RLock, world)}
    for each in (psycopg_pool.pool, psycopg_pool.sched, psycopg_pool.base):
        names[each, "monotonic"] = world.monotonic
    return names


@contextmanager
def replaced(names: Names) -> Iterator[None]:
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
