"""What a connection still has to send: small pieces in one, large ones as they were queued, uncopied."""

import socket
from collections import deque
from itertools import islice

TURN_BYTES = 1_048_576  # sent to a fast reader before the other connections have their turn
_PIECES = 4  # in one call
_JOINED_BYTES = 16_384


class Outbox:
    """Bytes that wait to be sent; `size` is their number."""

    __slots__ = ("_pieces", "size")

    def __init__(self) -> None:
        self._pieces: deque[bytes | memoryview] = deque()
        self.size = 0

    def append(self, piece: bytes) -> None:
        """Add a piece that is not empty."""
        self.size += len(piece)
        if self._pieces and self.size <= _JOINED_BYTES:
            piece = b"".join((self._pieces.pop(), piece))
        self._pieces.append(piece)

    def clear(self) -> None:
        """Discard everything."""
        self._pieces.clear()
        self.size = 0

    def send(self, sock: socket.socket) -> None:
        """Send what *sock* takes, up to about TURN_BYTES. Raises OSError."""
        pieces, end = self._pieces, self.size - TURN_BYTES
        try:
            while pieces and self.size > end:
                self._remove(
                    sock.send(pieces[0]) if len(pieces) == 1 else sock.sendmsg(islice(pieces, _PIECES))
                )
        except BlockingIOError:
            pass

    def _remove(self, count: int) -> None:
        self.size -= count
        while count:
            piece = self._pieces.popleft()
            if count < len(piece):
                self._pieces.appendleft(memoryview(piece)[count:])
                return
            count -= len(piece)
