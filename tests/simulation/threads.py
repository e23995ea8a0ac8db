"""Simulated locks, events, queues and threads: the interfaces of `threading` and `queue`."""

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from tests.simulation.world import Thread, World, asker


class Lock:
    """A lock that is not reentrant; each use may pre-empt the thread."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.owner: Thread | None = None
        self.count = 0
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
        while self.waiting:
            thread = self.waiting.popleft()
            if thread.is_blocked:
                self.world.wake(thread)
                break
        if not self.world.is_over:
            self.world.preempt()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class RLock(Lock):
    """A reentrant lock."""

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
    """An event."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.flag = False
        self.waiting: list[Thread] = []

    def set(self) -> None:
        self.flag = True
        waiting, self.waiting = self.waiting, []
        for thread in waiting:
            self.world.wake(thread)
        self.world.preempt()

    def clear(self) -> None:
        self.flag = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self.flag:
            self.world.wait_in(self.waiting, timeout)
        return self.flag


class Queue:
    """A queue without a limit."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.items: deque[Any] = deque()
        self.waiting: deque[Thread] = deque()

    def put_nowait(self, item: object) -> None:
        self.items.append(item)
        while self.waiting:
            thread = self.waiting.popleft()
            if thread.is_blocked:
                self.world.wake(thread)
                break
        self.world.preempt()

    put = put_nowait

    def get(self) -> Any:
        while not self.items:
            self.world.wait_in(self.waiting, None)
        return self.items.popleft()


class StartedThread:
    """The interface of `threading.Thread`."""

    def __init__(
        self,
        world: World,
        target: Callable[..., object],
        args: tuple[Any, ...] = (),
        name: str | None = None,
        daemon: bool | None = None,
    ) -> None:
        self.world = world
        self.name = name or f"thread {next(world.numbers)}"
        self._call = lambda: target(*args)
        self.simulated: Thread | None = None

    def start(self) -> None:
        if self.world.chance("no more threads", asker()):
            raise RuntimeError("can't start new thread")
        self.start_surely()

    def start_surely(self) -> None:
        self.simulated = self.world.start(self.name, self._call)
        self.world.preempt()

    def is_alive(self) -> bool:
        return self.simulated is not None and self.simulated.is_alive

    def join(self, timeout: float | None = None) -> None:
        if self.is_alive() and self.simulated is not None:
            self.world.wait_in(self.simulated.joining, timeout)


class Threading:
    """The module `threading`."""

    def __init__(self, world: World) -> None:
        self._world = world

    def __getattr__(self, name: str) -> Any:
        return getattr(threading, name)

    def Lock(self) -> Lock:
        return Lock(self._world)

    def Event(self) -> Event:
        return Event(self._world)

    def Thread(self, **options: Any) -> StartedThread:
        return StartedThread(self._world, **options)

    def get_ident(self) -> int:
        return self._world.current.ident if self._world.current is not None else 0


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
