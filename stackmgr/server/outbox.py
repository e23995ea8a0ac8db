"""What a connection still has to send: small pieces in one, large ones as they were queued, uncopied."""

import socket
from collections import deque
from itertools import islice

TURN_BYTES = 1_048_576  # sent to a fast reader before the other connections have their turn
_PIECES = 4  # in one call
_JOINED_BYTES = 16_384


class Outbox:
    """Bytes that wait to be sent; its length is their number."""

    __slots__ = ("_pieces", "_size")

    def __init__(self) -> None:
        self._pieces: deque[bytes | memoryview] = deque()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def append(self, piece: bytes) -> None:
        """Add a piece that is not empty."""
        self._size += len(piece)
        if self._pieces and self._size <= _JOINED_BYTES:
            piece = b"".join((self._pieces.pop(), piece))
        self._pieces.append(piece)

    def clear(self) -> None:
        """Discard everything."""
        self._pieces.clear()
        self._size = 0

    def send(self, sock: socket.socket) -> None:
        """Send what *sock* takes, up to about TURN_BYTES. Raises OSError."""
        end = self._size - TURN_BYTES
        try:
            while self._pieces and self._size > end:
                is_one = len(self._pieces) == 1
                self._remove(
                    sock.send(self._pieces[0]) if is_one else sock.sendmsg(islice(self._pieces, _PIECES))
                )
        except BlockingIOError:
            pass

    def _remove(self, count: int) -> None:
        self._size -= count
        while count:
            piece = self._pieces.popleft()
            if count < len(piece):
                self._pieces.appendleft(memoryview(piece)[count:])
                return
            count -= len(piece)
