"""Chunked bodies, decoded as they arrive: the worker's decoder by itself and beside gunicorn's."""

import contextlib
import random
import select
import socket
import struct

import pytest
from gunicorn.http import unreader
from gunicorn.http.body import Body, ChunkedReader
from gunicorn.http.errors import NoMoreData, ParseException

from stackmgr.limits import BODY_LIMIT_BYTES as BODY_LIMIT
from stackmgr.server import body, connection
from stackmgr.server.body import ChunkedDecoder, IncompleteBody
from stackmgr.server.connection import ClientConnection, Disconnected, EndOfInput
from stackmgr.server.queue import Place, RequestQueue
from stackmgr.server.request import BadRequest, HeadLimits, ReceivedRequest
from tests.support.malformed import fuzz_request_count

LIMITS = HeadLimits(4094, 100, 8190)
HEAD = b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
GOOD = [
    b"3\r\nabc\r\n0\r\n\r\n",
    b'003;a=b\r\nabc\r\nA;a;b="c;d\\""\r\n0123456789\r\n0\r\n\r\n',
    b"1\r\nx\r\n" * 5 + b"0 ;a\r\nX-A: b\r\nX-B: c\r\n\r\n",
    b"0\r\n\r\n",
]
_TOKENS = [
    b"\r",
    b"\n",
    b"\r\n",
    b";",
    b"0",
    b"a",
    b"=",
    b'"',
    b" ",
    b"\t",
    b"\x00",
    b"\xff",
    b"0\r\n\r\n",
    b"Host: a\r\n",
]


def decode(data, cuts):
    """Return the content and what follows the body, for a body that arrives in pieces; None if it is malformed."""
    decoder = ChunkedDecoder(ReceivedRequest(HEAD, LIMITS))
    inbox, start = bytearray(), 0
    for end in (*cuts, len(data)):
        inbox += data[start:end]
        start = end
        try:
            while not (is_complete := decoder.feed(inbox)) and decoder.is_suspended:
                pass
        except BadRequest:
            return None
        if is_complete:
            content = decoder.body().read(BODY_LIMIT + 1 if decoder.exceeds_limit else -1)
            return content, bytes(inbox) + data[end:]
    return None


def decode_by_gunicorn(data):
    class Connection:
        limit_request_field_size, max_buffer_headers = 8190, 65536

        @staticmethod
        def parse_headers(block, **_):
            ReceivedRequest(HEAD, LIMITS).check_trailers(block + b"\r\n")

    source = unreader.IterUnreader(iter([data]))
    try:
        content = Body(ChunkedReader(Connection(), source)).read()
    except (ParseException, NoMoreData, BadRequest):
        return None
    rest = b""
    while piece := source.read():
        rest += piece
    return content, rest


def mutants(count):
    chance = random.Random(20261121)
    for _ in range(count):
        data = bytearray(chance.choice(GOOD) + b"next")
        for _ in range(chance.randint(0, 3)):
            at = chance.randrange(len(data))
            if chance.random() < 0.6:
                data[at:at] = chance.choice(_TOKENS)
            else:
                del data[at]
        yield bytes(data), sorted(chance.randrange(len(data)) for _ in range(chance.randint(0, 5)))


def test_every_body_is_decoded_as_by_gunicorn_wherever_it_is_cut():
    accepted = 0
    for data, cuts in mutants(fuzz_request_count(5000)):
        expected = decode_by_gunicorn(data)
        assert decode(data, ()) == expected, data
        assert decode(data, cuts) == expected, (data, cuts)
        accepted += expected is not None
    assert accepted > 500


def test_chunks_are_decoded_a_few_at_a_time(monkeypatch):
    decoder = ChunkedDecoder(ReceivedRequest(HEAD, LIMITS))
    inbox = bytearray(b"1\r\nx\r\n" * 1000)
    assert not decoder.feed(inbox)
    assert decoder.is_suspended
    assert len(inbox) > 700 * 6
    decoder = ChunkedDecoder(ReceivedRequest(HEAD, LIMITS))
    inbox = bytearray(b"1;" + b"a" * 8000 + b"\r\nx\r\n") * 2
    assert not decoder.feed(inbox)
    assert len(inbox) > 8000
    monkeypatch.setattr(body, "TURN_FRAMING", 1)
    for data in GOOD:
        assert decode(data, ()) == decode_by_gunicorn(data)


@pytest.fixture
def connected():
    """The server's end of a connection, and the client's."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        sock, peer = server.accept()
    with client, sock:
        yield ClientConnection(sock, peer, sock.getsockname(), Place(RequestQueue(1))), client


def receive(conn):
    """Return the next request, as in turns of a worker."""
    request = None
    while request is None:
        conn.has_event = bool(select.select([conn.sock], [], [], 0 if conn.may_continue else 10)[0])
        request = conn.receive(LIMITS)
    return request


def test_nothing_is_decoded_for_a_client_that_has_left_before_the_end(connected):
    conn, client = connected
    client.sendall(HEAD + b"1\r\nx\r\n" * 5_000)
    client.shutdown(socket.SHUT_WR)
    with pytest.raises(EndOfInput):
        receive(conn)
    assert conn.held > 28_000


@pytest.mark.parametrize("end", [b"0\r\n\r\n", b"0\r\nX-A: b\r\n\r\n", b"0\r\n\r\nGET / HTT"])
def test_a_complete_body_is_decoded_for_a_client_that_has_half_closed(connected, end):
    conn, client = connected
    client.sendall(HEAD + b"1\r\nx\r\n" * 5_000 + end)
    client.shutdown(socket.SHUT_WR)
    assert receive(conn).body.read() == b"x" * 5_000


def test_a_body_that_ends_where_a_read_ends_is_decoded(connected):
    conn, client = connected
    client.sendall(HEAD)
    conn.has_event = True
    assert conn.receive(LIMITS) is None
    client.sendall(b"%x\r\n%b\r\n0\r\n\r\n" % (65_522, b"x" * 65_522))  # 65,536 bytes
    assert len(receive(conn).body.read()) == 65_522


def test_no_more_is_read_than_a_request_can_have(connected, monkeypatch):
    conn, client = connected
    monkeypatch.setattr(connection, "INBOX_LIMIT", 100_000)
    client.settimeout(0)
    with contextlib.suppress(BlockingIOError):
        client.send(HEAD + b"1\r\nx\r\n" * 200_000)
    for _ in range(10):
        conn.has_event = True
        assert conn.receive(LIMITS) is None
    assert 100_000 <= conn.held < 100_000 + 65_536


def test_a_client_that_has_reset_its_connection_is_disconnected(connected):
    conn, client = connected
    assert not conn.has_input()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    with pytest.raises(Disconnected):
        conn.has_input()


def test_byte_by_byte():
    for data in GOOD:
        assert decode(data, range(1, len(data))) == decode(data, ()) != None  # noqa: E711


def test_content_at_and_over_the_limit():
    for length in (BODY_LIMIT, BODY_LIMIT + 1):
        for data in (
            b"%x\r\n%s\r\n0\r\n\r\n" % (length, b"x" * length),
            b"1\r\nx\r\n" * length + b"0\r\n\r\n",
        ):
            content, rest = decode(data, range(1000, len(data), 1000))
            assert len(content) == length
            assert (rest == b"") == (length == BODY_LIMIT)


def test_framing_has_a_limit_that_does_not_depend_on_the_cuts():
    line = b"1;" + b"a" * 7994 + b"\r\nx\r\n"  # 8,000 bytes of framing for each byte
    for count, is_accepted in ((196, True), (197, False)):
        data = line * count + b"0\r\n\r\n"
        for cuts in ((), range(1000, len(data), 1000)):
            assert (decode(data, cuts) is not None) == is_accepted


def test_a_body_over_the_limit_never_looks_complete():
    cut = IncompleteBody(b"x" * 10)
    assert cut.read(6) == b"xxxxxx"
    for read in (cut.read, lambda: cut.read(5), lambda: cut.read(None), cut.readline, lambda: list(cut)):
        with pytest.raises(OSError, match="exceeds the limit"):
            read()
