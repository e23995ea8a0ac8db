"""The socket of one client: what is read from it and sent to it, without waiting."""

import socket
from fcntl import ioctl
from select import EPOLLERR, EPOLLHUP
from sys import byteorder
from termios import TIOCOUTQ
from typing import Any

from stackmgr.admission import ADMISSION
from stackmgr.server.protocol import DRAINING, IDLE, READING, WRITING, Protocol, Rejection
from stackmgr.server.queue import Place
from stackmgr.server.request import ReceivedRequest

WRITE_PROGRESS = 65_536  # bytes that a client has to take until the deadline of WRITING


class ClientConnection:
    """A client's socket and the protocol spoken on it."""

    __slots__ = ("_has_event", "_unread", "environ", "fd", "peer", "place", "protocol", "sock")

    def __init__(self, sock: socket.socket, peer: Any, server: Any, place: Place, protocol: Protocol) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.fd = sock.fileno()
        self.peer = peer[0] if isinstance(peer, tuple) else "unix"
        self.place = place
        self.environ: dict[str, Any] = {**addresses(peer, server), ADMISSION: place}
        self.protocol = protocol
        self._has_event = False  # since it was read last
        self._unread = 0  # bytes that the client had not read when this was last looked at

    def notice(self, events: int) -> None:
        """Note what has happened to the socket."""
        self._has_event = True
        # After a shutdown of both sides, what has arrived is still to be read, or the response is lost.
        if events & (EPOLLERR if self.protocol.state is DRAINING else EPOLLERR | EPOLLHUP):
            self.protocol.leave()

    @property
    def may_continue(self) -> bool:
        """Whether something can be done without another event."""
        return self.protocol.may_continue or (self._has_event and self.protocol.state is not WRITING)

    @property
    def read_size(self) -> int:
        """Bytes that a step reads at most."""
        return 65_536 if self.protocol.may_wait else 4_096

    def step(self) -> ReceivedRequest | Rejection | None:
        """Send, or read and parse, a part of what is there; return the next request once it is complete."""
        protocol = self.protocol
        if self._has_event and protocol.state in (IDLE, READING, DRAINING) and not protocol.may_continue:
            self._receive()
        return protocol.proceed() if protocol.state in (IDLE, READING) else None

    def _receive(self) -> None:
        size = self.read_size
        try:
            data = self.sock.recv(size)
        except BlockingIOError:
            self._has_event = False
            return
        except OSError:
            self.protocol.leave()
            return
        self._has_event = len(data) == size  # there may be more
        self.protocol.receive(data)

    def flush(self) -> None:
        """Send what the socket takes at once; the rest stays in the outbox."""
        protocol = self.protocol
        if protocol.state is not WRITING:
            return
        try:
            protocol.sent(self.sock.send(protocol.outbox))
            if protocol.state is DRAINING:
                self.sock.shutdown(socket.SHUT_WR)
        except BlockingIOError:
            pass
        except OSError:
            protocol.leave()

    def expire(self) -> Rejection | None:
        """End the state whose deadline has passed, unless bytes have arrived."""
        if self.protocol.state in (IDLE, READING):
            if not self.may_continue:
                self._receive()
            if self.may_continue:
                return None
        return self.protocol.expire()

    def note_unread(self) -> None:
        """Remember how many bytes the client has not read yet."""
        self._unread = self._count_unread()

    def has_progressed(self) -> bool:
        """Return whether the client has read WRITE_PROGRESS bytes since this was last so."""
        unread = self._count_unread()
        if unread > self._unread - WRITE_PROGRESS:
            return False
        self._unread = unread
        return True

    def _count_unread(self) -> int:
        """Return how many bytes the client's system has not acknowledged; the kernel holds some of them."""
        held = int.from_bytes(ioctl(self.fd, TIOCOUTQ, bytes(4)), byteorder)
        return len(self.protocol.outbox) + held


def addresses(peer: Any, server: Any) -> dict[str, str]:
    """Return the part of the environ that is the same for all requests of a connection."""
    if isinstance(peer, tuple):
        host, port, *_ = server
        return {
            "REMOTE_ADDR": peer[0], "REMOTE_PORT": str(peer[1]), "SERVER_NAME": host, "SERVER_PORT": str(port)
        }  # fmt: skip
    # A unix socket has neither; a port that no listener has, so that no Host header can name one.
    return {"REMOTE_ADDR": "", "SERVER_NAME": "localhost", "SERVER_PORT": "0"}
