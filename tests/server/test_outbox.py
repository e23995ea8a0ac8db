"""What a connection has to send: in order, complete, and a part at a time."""

import socket

from stackmgr.server.outbox import TURN_BYTES, Outbox


def test_pieces_are_sent_in_order_whatever_the_socket_takes():
    outbox, received = Outbox(), b""
    pieces = [bytes([number]) * size for number, size in enumerate((1, 300_000, 2, 700_000, 3, 4, 5, 6))]
    one, other = socket.socketpair()
    with one, other:
        one.setblocking(False)
        for piece in pieces:
            outbox.append(piece)
        while outbox.size:
            before = outbox.size
            outbox.send(one)
            sent = before - outbox.size
            assert sent
            received += other.recv(sent, socket.MSG_WAITALL)
    assert received == b"".join(pieces)


class FastReader:
    """A socket that takes everything."""

    def sendmsg(self, buffers):
        return sum(map(len, buffers))

    send = len


def test_a_fast_reader_is_sent_a_part_in_each_turn():
    outbox = Outbox()
    for _ in range(100):
        outbox.append(bytes(262_144))
    outbox.send(FastReader())
    assert TURN_BYTES <= 26_214_400 - outbox.size <= 2 * TURN_BYTES
    outbox.clear()
    assert outbox.size == 0
    outbox.send(FastReader())
