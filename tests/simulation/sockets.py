"""Connections between simulated clients (`Stream`) and the service (`Socket`), and the listeners."""

import socket
from collections import deque
from errno import EBADF, ECONNABORTED, EMFILE, ENOTCONN
from select import EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT
from typing import Any

from tests.simulation.kernel import File, Kernel
from tests.simulation.world import Thread, World

_BUFFER_BYTES = (300, 1500, 5000)  # in each direction


class Stream:
    """A connection as its client has it."""

    def __init__(self, world: World, client: Any) -> None:
        self.world, self.client = world, client
        self.limit = world.random.choice(_BUFFER_BYTES)
        self.sent, self.received = bytearray(), bytearray()  # what the other end has not read yet
        self.has_finished = False  # the client sends no more
        self.is_ended = False  # the service sends no more
        self.ended_at = 0.0
        self.is_reset = False
        self.socket: Socket | None = None
        self.waiting: list[Thread] = []

    @property
    def has_output(self) -> bool:
        """Whether there is something to read, or the end of it."""
        return bool(self.received) or self.is_ended or self.is_reset

    def wait(self) -> None:
        self.world.wait_in(self.waiting, None)

    def changed(self) -> None:
        """Wake who waits for this connection, at both ends."""
        self.world.wake_all(self.waiting)
        if self.socket is not None:
            self.socket.changed()

    def send(self, data: bytes) -> int:
        """Send as much of *data* as there is room for; what is sent on a closed connection is lost."""
        if self.is_ended or self.is_reset:
            return len(data)
        taken = data[: max(0, self.limit - len(self.sent))]
        self.sent += taken
        self.changed()
        return len(taken)

    def read(self, number: int) -> bytes:
        taken = bytes(self.received[:number])
        del self.received[:number]
        self.changed()
        return taken

    def finish(self) -> None:
        self.has_finished = True
        self.changed()

    def close(self, *, resets: bool) -> None:
        self.is_reset |= resets or bool(self.received)
        if self.is_reset:
            self.sent.clear()
        self.finish()

    def end(self, *, is_reset: bool = False) -> None:
        if not self.is_ended:
            self.is_ended, self.ended_at = True, self.world.now
        self.is_reset |= is_reset
        self.changed()


class Socket(File):
    def __init__(self, kernel: Kernel, stream: Stream) -> None:
        super().__init__(kernel)
        self.stream, self.world = stream, kernel.world
        stream.socket = self

    def events(self) -> int:
        stream = self.stream
        if stream.is_reset:
            return EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP
        has_room = len(stream.received) * 3 <= stream.limit * 2 or stream.is_ended
        mask = (EPOLLIN if stream.sent or stream.has_finished else 0) | (EPOLLOUT if has_room else 0)
        return mask | (EPOLLHUP if stream.has_finished and stream.is_ended else 0)

    def _use(self) -> None:
        self.world.preempt()
        if self.number < 0:
            raise OSError(EBADF, "Bad file descriptor")

    def _shorten(self, number: int) -> int:
        """Return how many of *number* bytes one call transfers."""
        return self.world.random.randrange(1, number) if number > 1 and self.world.chance("short") else number

    def setblocking(self, _: bool) -> None:
        self._use()

    def recv(self, number: int, flags: int = 0) -> bytes:
        self._use()
        content = self.stream.sent
        if not content and self.stream.is_reset:
            raise ConnectionResetError
        if not content and not self.stream.has_finished:
            raise BlockingIOError
        if flags & socket.MSG_PEEK:
            return bytes(content[:number])
        taken = bytes(content[: self._shorten(min(number, len(content)))])
        del content[: len(taken)]
        self.stream.changed()
        return taken

    def send(self, data: bytearray) -> int:
        self._use()
        room = self.stream.limit - len(self.stream.received)
        if self.stream.is_reset or self.stream.is_ended:
            raise BrokenPipeError
        if room <= 0:
            raise BlockingIOError
        taken = data[: self._shorten(min(room, len(data)))]
        self.stream.received += taken
        self.stream.is_reset |= self.stream.client.has_left
        self.stream.changed()
        return len(taken)

    def shutdown(self, _: int) -> None:
        self._use()
        if self.stream.is_reset:
            raise OSError(ENOTCONN, "Transport endpoint is not connected")
        self.stream.end()

    def close(self) -> None:
        if self.number < 0:
            return
        super().close()
        stream = self.stream  # unread bytes reset it, which may discard what the client has not read yet
        if stream.sent:
            lost = self.world.random.randrange(len(stream.received) + 1)
            del stream.received[len(stream.received) - lost :]
        stream.end(is_reset=bool(stream.sent))


class Backlog:
    """Connections that wait to be accepted; several listeners, of several workers, may share it."""

    def __init__(self) -> None:
        self.waiting: deque[Stream] = deque()
        self.listeners: list[Listener] = []
        self.is_held = True  # by the master
        self.promised_until = 0.0  # who connects later may be reset

    def connect(self, stream: Stream) -> bool:
        """Let a connection wait; return False if it is refused."""
        if not (self.listeners or self.is_held):
            return False
        self.waiting.append(stream)
        for listener in self.listeners:
            listener.changed()
        return True

    def release(self, now: float) -> None:
        """Let it be held by workers only, which accept all that waits before they close."""
        self.is_held, self.promised_until = False, now if self.listeners else 0.0
        self.reset_unheld()

    def reset_unheld(self) -> None:
        """Reset what waits if no process holds a listener."""
        while not self.listeners and not self.is_held and self.waiting:
            stream = self.waiting.popleft()
            if stream.client.connected_at >= self.promised_until:
                stream.client.excuse = "after the last accept"
            stream.end(is_reset=True)


class Listener(File):
    def __init__(self, kernel: Kernel, backlog: Backlog, port: int) -> None:
        super().__init__(kernel)
        self.backlog, self.port, self.sock = backlog, port, self
        backlog.listeners.append(self)

    def events(self) -> int:
        return EPOLLIN if self.backlog.waiting else 0

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    def accept(self) -> tuple[Socket, tuple[str, int]]:
        world, backlog = self.kernel.world, self.backlog
        world.preempt()
        if len(self.kernel.files) >= self.kernel.limit:
            backlog.promised_until = 0.0
            raise OSError(EMFILE, "Too many open files")
        if not backlog.waiting:
            backlog.promised_until = world.now
            raise BlockingIOError
        stream = backlog.waiting.popleft()
        if stream.is_reset and world.random.random() < 0.5:
            raise ConnectionAbortedError(ECONNABORTED, "Software caused connection abort")
        accepted = Socket(self.kernel, stream)
        return accepted, ("127.0.0.1", accepted.number)

    def close(self) -> None:
        if self.number >= 0:
            super().close()
            self.backlog.listeners.remove(self)
            self.backlog.reset_unheld()
