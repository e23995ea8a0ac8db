"""Where gunicorn's body readers read from, and what the application reads where a body is not collected."""

from collections.abc import Callable

from gunicorn.http.body import Body
from gunicorn.http.errors import NoMoreData, ParseException

PIECE = 8192  # the chunk reader copies what is left of a piece for every chunk in it: keep pieces small


class IncompleteBody(OSError):
    """The rest of a body read by the application is malformed or late."""


class GuardedBody(Body):  # type: ignore[misc]
    """A body read while it arrives: what is wrong with it is an OSError, as an application expects."""

    def _read_reader(self, size: int) -> bytes:
        try:
            return bytes(super()._read_reader(size))
        except ParseException as exc:
            raise IncompleteBody(type(exc).__name__) from None


class Inbox:
    """What gunicorn's readers read from (an `Unreader`): bytes already here, then `more()` if given."""

    __slots__ = ("_at", "_data", "more")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self.more: Callable[[int], bytes] | None = None

    def read(self, size: int | None = None, read_ahead: int | None = None) -> bytes:
        """Return `size` bytes, never fewer, or without a size whatever is next, empty at the end."""
        if size is None:
            size = PIECE
            if self._at >= len(self._data) and self.more:
                return self.more(PIECE)
        elif len(self._data) - self._at < size:
            self._fetch(size)
        piece = self._data[self._at : self._at + size]
        self._at += len(piece)
        return piece

    def _fetch(self, size: int) -> None:
        parts = [self.rest()]
        have = len(parts[0])
        while have < size:
            part = self.more(size - have) if self.more else b""
            if not part:
                raise NoMoreData  # LengthReader would pass a truncated body on as a whole one
            parts.append(part)
            have += len(part)
        self._data, self._at = b"".join(parts), 0

    def unread(self, data: bytes | bytearray) -> None:
        """Take back bytes read too far."""
        if data:
            self._data, self._at = bytes(data) + self.rest(), 0

    def rest(self) -> bytes:
        """Return what nobody has read."""
        return self._data[self._at :]
