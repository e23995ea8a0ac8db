"""Simulated locks, events, queues and threads: the interfaces of `threading` and `queue`."""

from collections import deque
from collections.abc import Callable
from typing import Any

from tests.simulation.world import Thread, World, asker


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
    def __init__(
        self, world: World, target: Callable[[], object], name: str | None = None, *, daemon: bool
    ) -> None:
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
