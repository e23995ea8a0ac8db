"""The remote ends of connections, which simulated clients and verifiers hold: no descriptor, no blocking."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.simulation.sockets import LocalSocket


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
