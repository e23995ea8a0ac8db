"""Stream sockets and listeners of the simulated kernel, and the remote ends that simulated clients hold.

A connection has two pipes of bounded size.  Its local end is a descriptor of the service, with the methods of
`socket.socket` that the service calls; its remote end has no descriptor and never blocks.  As in a real
kernel, closing an end that has unread bytes resets the connection, and a reset may discard bytes that the
other end has not read yet.
"""

import os
import socket
from collections import deque
from collections.abc import Callable
from errno import EALREADY, EBADF, ECONNREFUSED, EINPROGRESS, EMFILE, ENOTCONN
from select import EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT
from typing import Any

from tests.simulation.kernel import File, Kernel
from tests.simulation.world import World, asker


class Pipe:
    """Bytes on their way in one direction."""

    __slots__ = ("content", "has_ended", "limit")

    def __init__(self, limit: int) -> None:
        self.content = bytearray()
        self.limit = limit
        self.has_ended = False  # no more are sent

    @property
    def room(self) -> int:
        """How many bytes it takes now."""
        return max(0, self.limit - len(self.content))

    def take(self, number: int) -> bytes:
        """Remove and return at most *number* bytes."""
        taken = bytes(self.content[:number])
        del self.content[:number]
        return taken


class RemoteEnd:
    """The end of a connection that a simulated client or verifier holds."""

    def __init__(self, receives: Pipe, sends: Pipe) -> None:
        self.receives, self.sends = receives, sends
        self.local: LocalSocket | None = None
        self.is_reset = False
        self.is_closed = False
        self.noticed: Callable[[], None] | None = None  # called at each change
        self.holder: Any = None
        self.connected_at = 0.0

    def notice(self) -> None:
        """Tell the holder that something has changed."""
        if self.noticed is not None:
            self.noticed()

    def read(self, number: int = 65536) -> bytes:
        """Return what has arrived."""
        taken = self.receives.take(number)
        if taken:
            self._changed()
        return taken

    @property
    def has_input(self) -> bool:
        """Whether there are bytes, or the end of them."""
        return bool(self.receives.content) or self.receives.has_ended or self.is_reset

    def send(self, data: bytes) -> int:
        """Send as much of *data* as the pipe takes."""
        if self.is_reset or self.sends.has_ended:
            return len(data)  # lost
        taken = data[: self.sends.room]
        self.sends.content += taken
        self._changed()
        return len(taken)

    def shut_down(self) -> None:
        """Send no more."""
        self.sends.has_ended = True
        self._changed()

    def close(self) -> None:
        """Close: with a reset if there are unread bytes."""
        self.is_closed = True
        if self.receives.content:
            self.reset()
        else:
            self.shut_down()

    def reset(self) -> None:
        """Reset the connection."""
        self.is_closed = self.is_reset = self.sends.has_ended = True
        self.sends.content.clear()
        self.receives.content.clear()
        if self.local is not None:
            self.local.was_reset()

    def _changed(self) -> None:
        if self.local is not None:
            self.local.changed()


_PIPE_BYTES = (300, 1500, 5000)
_ABORTED_SHARE = 0.5  # of connections that were reset before they are accepted


class LocalSocket(File):
    """A connected or connecting socket of the service."""

    def __init__(self, network: "Network", remote: RemoteEnd | None = None) -> None:
        self.network, self.world = network, network.world
        self.remote = remote
        self.is_reset = False
        self.failure = 0  # of the attempt to connect
        self.user: object = None  # the request for which it was used last
        self.bytes_since: float | None = None  # when unread bytes arrived
        self._is_connecting = False
        super().__init__(network.kernel)
        if remote is not None:
            remote.local = self

    # What the kernel asks.

    def events(self) -> int:
        remote = self.remote
        if self.failure or self.is_reset:
            return EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP
        if remote is None:  # connecting
            return 0
        received, sent = remote.sends, remote.receives
        mask = EPOLLIN if received.content or received.has_ended else 0
        if sent.room * 3 >= sent.limit or sent.has_ended:
            mask |= EPOLLOUT
        if received.has_ended and sent.has_ended:
            mask |= EPOLLHUP
        return mask

    def changed(self) -> None:
        """Wake those who wait for this socket."""
        if self.remote is not None and self.bytes_since is None and self.remote.sends.content:
            self.bytes_since = self.world.now
        super().changed()

    def was_reset(self) -> None:
        self.is_reset = True
        self.changed()

    # What the service calls.

    def setblocking(self, _: bool) -> None:
        self.use()

    def settimeout(self, _: float) -> None:
        self.use()

    def setsockopt(self, *_: Any) -> None:
        self.use()

    def use(self) -> None:
        """Take part in the schedule, and have the use of this descriptor checked."""
        self.world.preempt()
        if self.number < 0:
            raise OSError(EBADF, "Bad file descriptor")
        self.user = asker()

    def may_raise(self) -> None:
        """Raise, as a fault, what nobody foresees."""
        if self.remote is not None and self.world.chance("unforeseen exception"):
            self.remote.holder.excuse, self.remote.holder.is_broken = "an exception", True
            raise MemoryError

    def recv(self, number: int, flags: int = 0) -> bytes:
        self.use()
        if self.remote is None:
            raise BlockingIOError
        self.may_raise()
        pipe = self.remote.sends
        if self.is_reset and not pipe.content:
            raise ConnectionResetError
        if not pipe.content:
            if pipe.has_ended:
                return b""
            raise BlockingIOError
        if flags & socket.MSG_PEEK:
            return bytes(pipe.content[:number])
        data = pipe.take(self.network.shorten(min(number, len(pipe.content))))
        if not pipe.content:
            self.bytes_since = None
        self.remote.notice()
        return data

    def recv_into(self, buffer: Any, nbytes: int | None = None, flags: int = 0) -> int:
        data = self.recv(nbytes or len(buffer), flags)
        buffer[: len(data)] = data
        return len(data)

    def send(self, data: Any, _: int = 0) -> int:
        self.use()
        if self.remote is None:
            raise BlockingIOError
        self.may_raise()
        pipe = self.remote.receives
        if self.is_reset or pipe.has_ended:
            raise BrokenPipeError
        if not pipe.room:
            raise BlockingIOError
        taken = bytes(memoryview(data)[: self.network.shorten(min(pipe.room, len(data)))])
        if self.remote.is_closed:
            self.was_reset()
        else:
            pipe.content += taken
            self.remote.notice()
        return len(taken)

    def shutdown(self, how: int) -> None:
        self.use()
        self.may_raise()
        if self.is_reset or self.remote is None:
            raise OSError(ENOTCONN, "Transport endpoint is not connected")
        if how != socket.SHUT_RD:
            self.remote.receives.has_ended = True
            self.remote.notice()
            self.changed()

    def unread(self) -> int:
        """Return how many sent bytes the other end has not read: TIOCOUTQ."""
        return 0 if self.remote is None else len(self.remote.receives.content)

    def close(self) -> None:
        self.world.preempt()
        if self.number >= 0:
            self.exit()

    def exit(self) -> None:
        """Close as the kernel does when the process ends."""
        super().close()
        remote = self.remote
        if remote is None or self.is_reset:
            return
        if remote.sends.content:
            lost = self.world.random.randrange(len(remote.receives.content) + 1)
            del remote.receives.content[len(remote.receives.content) - lost :]
            remote.is_reset = True
        remote.receives.has_ended = remote.sends.has_ended = True
        remote.notice()

    def connect(self, address: Any) -> None:
        """Begin to connect, or say how far an attempt is."""
        self.use()
        if self.remote is not None:
            return
        began, self._is_connecting = self._is_connecting, True
        failure = self.failure or (EALREADY if began else self.network.connect_from(self, address))
        self.failure = 0
        raise OSError(failure, os.strerror(failure))


class Backlog:
    """Connections that wait to be accepted; several listeners, of several workers, may share it."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.waiting: deque[RemoteEnd] = deque()
        self.listeners: list[Listener] = []
        self.is_held = True  # by the master
        self.emptied_at = 0.0  # when nothing more could be accepted

    def connect(self, remote: RemoteEnd) -> bool:
        """Let a remote end wait; return False if it is refused."""
        if not (self.listeners or self.is_held) or len(self.waiting) >= self.limit:
            return False
        self.waiting.append(remote)
        for listener in self.listeners:
            listener.changed()
        return True

    def reset_unheld(self) -> None:
        """Reset what waits if no process holds a listener."""
        while not self.listeners and not self.is_held and self.waiting:
            remote = self.waiting.popleft()
            remote.is_reset = remote.receives.has_ended = True
            if remote.connected_at >= self.emptied_at:
                remote.holder.excuse = "after the last accept"
            remote.notice()


class Listener(File):
    """A listening socket."""

    def __init__(self, network: "Network", backlog: Backlog, port: int) -> None:
        super().__init__(network.kernel)
        self.network, self.backlog, self.port = network, backlog, port
        backlog.listeners.append(self)

    @property
    def sock(self) -> "Listener":
        """As in gunicorn's listeners."""
        return self

    def events(self) -> int:
        return EPOLLIN if self.backlog.waiting else 0

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    def accept(self) -> tuple[LocalSocket, tuple[str, int]]:
        world = self.network.world
        world.preempt()
        if self.number < 0:
            raise OSError(EBADF, "Bad file descriptor")
        if len(self.kernel.files) >= self.kernel.limit:
            self.backlog.emptied_at = 0.0  # nobody is promised anything
            raise OSError(EMFILE, "Too many open files")
        if not self.backlog.waiting:
            self.backlog.emptied_at = world.now
            raise BlockingIOError
        remote = self.backlog.waiting.popleft()
        if remote.is_reset and world.random.random() < _ABORTED_SHARE:
            raise ConnectionAbortedError
        local = LocalSocket(self.network, remote)
        local.is_reset = remote.is_reset
        if remote.sends.content:
            local.bytes_since = world.now
        return local, ("127.0.0.1", 40_000 + local.number)

    def close(self) -> None:
        self.network.world.preempt()
        self.exit()

    def exit(self) -> None:
        """Close as the kernel does when the process ends."""
        super().close()
        self.backlog.listeners.remove(self)
        self.backlog.reset_unheld()


class Network:
    """Where remote ends connect to the service, and the service to others."""

    def __init__(self, kernel: Kernel, world: World) -> None:
        self.kernel, self.world = kernel, world
        # By port: gives the remote end to whom it concerns, or returns False to refuse the connection.
        self.services: dict[int, Callable[[RemoteEnd], bool]] = {}
        self._is_short = world.faults.get("short transfers", 0.0)

    def pipes(self) -> tuple[Pipe, Pipe]:
        """Return the pipes of a new connection."""
        choice = self.world.random.choice
        return Pipe(choice(_PIPE_BYTES)), Pipe(choice(_PIPE_BYTES))

    def shorten(self, number: int) -> int:
        """Return how many of *number* bytes one call transfers."""
        random = self.world.random
        if number > 1 and self._is_short and random.random() < self._is_short:
            return random.randrange(1, number)
        return number

    def connect_from(self, local: LocalSocket, address: tuple[str, int]) -> int:
        """Begin to connect; it ends later, or never."""
        world, service = self.world, self.services.get(address[1])
        if service is None:
            return ECONNREFUSED

        def finish() -> None:
            if local.number < 0:
                return
            remote = RemoteEnd(*self.pipes())
            if service(remote):
                remote.local, local.remote = local, remote
            else:
                local.failure = ECONNREFUSED
                world.touched[local.user].append("refused")
            local.changed()

        if not world.chance("a dropped connect", local.user):
            world.at(world.between(0.0, 0.02), finish)
        return EINPROGRESS
