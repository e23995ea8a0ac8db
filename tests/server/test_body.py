"""Chunked bodies, decoded as they arrive: the worker's decoder by itself and beside gunicorn's."""

import random

import pytest
from gunicorn.http import unreader
from gunicorn.http.body import Body, ChunkedReader
from gunicorn.http.errors import NoMoreData, ParseException

from stackmgr.server.body import CHUNKS_AT_ONCE, ChunkedDecoder
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
    b"\r", b"\n", b"\r\n", b";", b"0", b"a", b"=", b'"', b" ", b"\t", b"\x00", b"\xff", b"0\r\n\r\n", b"Host: a\r\n",
]  # fmt: skip


def decode(data, cuts):
    """Return the content and what follows the body, for a body that arrives in pieces; None if it is malformed."""
    decoder = ChunkedDecoder(ReceivedRequest(HEAD, LIMITS))
    inbox, start = bytearray(), 0
    for end in (*cuts, len(data)):
        inbox += data[start:end]
        start, size = end, -1
        while size != len(inbox):
            size = len(inbox)
            try:
                is_complete = decoder.feed(inbox)
            except BadRequest:
                return None
            if is_complete:
                return bytes(decoder.content), bytes(inbox) + data[end:]
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


def test_bodies_are_decoded_as_by_gunicorn():
    accepted = 0
    for data, cuts in mutants(fuzz_request_count(5000)):
        expected = decode_by_gunicorn(data)
        assert decode(data, ()) == expected, data
        assert decode(data, cuts) == expected, (data, cuts)
        accepted += expected is not None
    assert accepted > 500


def test_few_chunks_are_decoded_at_once():
    decoder, inbox = ChunkedDecoder(ReceivedRequest(HEAD, LIMITS)), bytearray(b"1\r\nx\r\n" * 300)
    for left in (300 - CHUNKS_AT_ONCE, 300 - 2 * CHUNKS_AT_ONCE, 0):
        assert not decoder.feed(inbox)
        assert len(inbox) == pytest.approx(6 * left, abs=3)
