"""Simulated descriptors, epoll, poll and eventfd.  The lowest free number is used again, as by a kernel."""

import errno
import os
import select
from heapq import heappop, heappush
from types import SimpleNamespace
from typing import Any

from tests.simulation.world import Thread, World

IN, OUT, ERR, HUP = select.EPOLLIN, select.EPOLLOUT, select.EPOLLERR, select.EPOLLHUP
ONESHOT = select.EPOLLONESHOT
_FIRST = 10_000  # no descriptor of this process has such a number


def module(real: Any, **simulated: Any) -> SimpleNamespace:
    return SimpleNamespace(**{**vars(real), **simulated})


class File:
    """The object of a descriptor; `events` returns what is ready."""

    def __init__(self, kernel: "Kernel") -> None:
        self.kernel = kernel
        self.watching: dict[Epoll, int] = {}  # the epoll instances that have it, with its number there
        self.waiting: list[Thread] = []  # in poll
        self.number = kernel.open(self)

    def changed(self) -> None:
        self.kernel.world.wake_all(self.waiting)
        for epoll, number in self.watching.items():
            epoll.notice(number)

    def wait(self, seconds: float | None) -> None:
        self.kernel.world.wait_in(self.waiting, seconds)

    def fileno(self) -> int:
        return self.number

    def close(self) -> None:
        if self.number >= 0:
            self.kernel.close(self.number)


class EventFd(File):
    def __init__(self, kernel: "Kernel", count: int) -> None:
        super().__init__(kernel)
        self.count = count

    def events(self) -> int:
        return (IN if self.count else 0) | OUT


class Epoll(File):
    """An epoll instance, with level trigger and EPOLLONESHOT.  What becomes ready first is returned first."""

    def __init__(self, kernel: "Kernel") -> None:
        super().__init__(kernel)
        self.interest: dict[int, list[Any]] = {}  # by number: the file, the events (0: disarmed)
        self.queue: dict[int, None] = {}  # what has been ready since it was armed or returned

    def register(self, number: int, events: int) -> None:
        file = self.kernel.file(number)
        if number in self.interest:
            raise FileExistsError(errno.EEXIST, "registered already", number)
        self.interest[number] = [file, events | ERR | HUP]
        file.watching[self] = number
        self.notice(number)

    def modify(self, number: int, events: int) -> None:
        self.kernel.file(number)
        if number not in self.interest:
            raise FileNotFoundError(errno.ENOENT, "not registered", number)
        self.interest[number][1] = events | ERR | HUP
        self.notice(number)

    def forget(self, number: int) -> None:
        del self.interest[number]
        self.queue.pop(number, None)

    def notice(self, number: int) -> None:
        file, events = self.interest[number]
        if events and file.events() & events:
            self.queue.setdefault(number)
            self.changed()

    def events(self) -> int:
        return IN if self._ready(1) else 0

    def _ready(self, most: int) -> list[tuple[int, int]]:
        found = []
        for number in list(self.queue):
            file, events = self.interest[number]
            if ready := file.events() & events:
                found.append((number, ready))
                if len(found) == most:
                    break
            else:
                del self.queue[number]
        return found

    def poll(self, timeout: float | None = None, maxevents: int = -1) -> list[tuple[int, int]]:
        if self.number < 0:
            raise ValueError("I/O operation on closed epoll object")
        world = self.kernel.world
        world.preempt()
        end = None if timeout is None or timeout < 0 else world.now + timeout
        while not (found := self._ready(maxevents)):
            left = None if end is None else end - world.now
            if left is not None and left <= 0:
                return []
            self.wait(left)
        for number, _ in found:
            entry = self.interest[number]
            del self.queue[number]
            if entry[1] & ONESHOT:
                entry[1] = 0
            else:
                self.queue[number] = None
        return found


class Poll:
    """A `select.poll` object of one descriptor: it keeps the number, not the file."""

    def __init__(self, kernel: "Kernel") -> None:
        self.kernel = kernel

    def register(self, number: int, events: int) -> None:
        self._number, self._events = number, events | ERR | HUP

    def poll(self, milliseconds: float) -> list[tuple[int, int]]:
        world = self.kernel.world
        end = world.now + milliseconds / 1000
        while True:
            file = self.kernel.files.get(self._number)
            ready = select.POLLNVAL if file is None else file.events() & self._events
            if file is None or ready or world.now >= end:
                return [(self._number, ready)] if ready else []
            file.wait(end - world.now)


class Kernel:
    def __init__(self, world: World) -> None:
        self.world = world
        self.files: dict[int, File] = {}
        self._free: list[int] = []

    def open(self, file: File) -> int:
        number = heappop(self._free) if self._free else _FIRST + len(self.files)
        self.files[number] = file
        return number

    def file(self, number: int) -> File:
        file = self.files.get(number)
        if file is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return file

    def close(self, number: int) -> None:
        file = self.file(number)
        del self.files[number]
        heappush(self._free, number)
        file.number = -1
        for epoll in file.watching:
            epoll.forget(number)
        file.watching.clear()
        self.world.wake_all(file.waiting)

    def eventfd(self, count: int) -> int:
        return EventFd(self, count).number

    def eventfd_write(self, number: int, value: int) -> None:
        file = self.file(number)
        file.count += value
        file.changed()
        self.world.preempt()

    def eventfd_read(self, number: int) -> int:
        file = self.file(number)
        while not file.count:
            file.wait(None)
        count, file.count = file.count, 0
        return count

    def os(self) -> SimpleNamespace:
        names = {"eventfd": self.eventfd, "eventfd_read": self.eventfd_read}
        return module(os, eventfd_write=self.eventfd_write, **names)
