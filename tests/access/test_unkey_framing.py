"""Responses of Unkey that are framed in unusual or wrong ways: the next key gets an outcome of its own."""

import json
import time
from threading import Event

import pytest

from stackmgr.access.verifiers.http_connection import HEAD_LIMIT_BYTES
from stackmgr.errors import ServiceError
from tests.support.http_server import http_server, response
from tests.support.unkey_server import accepted, verification

pytestmark = pytest.mark.usefixtures("circuit_stays_closed")
FIRST, NEXT = "3b241101-e2bb-4255-8caf-4136c566a962", "7f2b7c3e-6f0e-4c43-9d8e-0d1a4b1f6a11"
BODY = json.dumps(accepted(FIRST)).encode()
GOOD = response(200, BODY)
HINTS = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
BROKEN, TIMEOUT = "verifier_response_broken", "verifier_timeout"
LONG, NOT_JSON = "verifier_response_too_long", "verifier_response_not_json"
LATE = 0.1  # seconds until the next piece


def changed(head=b"", announced: int = len(BODY), version=b"1.1", body=BODY) -> bytes:
    fields = head or b"Content-Length: %d" % announced
    return b"HTTP/%s 200 OK\r\n%s\r\n\r\n%s" % (version, fields, body)


LENGTH = b"\r\nContent-Length: %d" % len(BODY)


def large_head(size: int) -> bytes:
    return changed(b"X: ".ljust(3 + size + len(BODY) - len(changed(b"X: " + LENGTH)), b"y") + LENGTH)


LONG_HEAD = large_head(HEAD_LIMIT_BYTES + 1)
LONG_HINT = b"HTTP/1.1 103 X\r\nLink: %b\r\n\r\n" % (b"x" * 15_000)
LATE_408 = b"HTTP/1.1 408 X\r\nConnection: close\r\n\r\n"
TOO_LONG = changed(announced=2_500_000, body=b" " * 2_500_000)
CHUNKS = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
MANY_CHUNKS = changed(b"Transfer-Encoding: chunked", body=b"1\r\n \r\n" * 100_000)
# Pieces of the response to the first key, None for a close; its outcome; whether the connection is kept.
CASES = {
    **{s: ([f"HTTP/1.1 {s} X\r\n\r\n".encode(), GOOD], FIRST, True) for s in ("100", "103", "199")},
    "in the same segment": ([HINTS + GOOD], FIRST, True), "none after it": ([HINTS], TIMEOUT, False),
    "101": ([b"HTTP/1.1 101 X\r\nUpgrade: x\r\n\r\n", GOOD], BROKEN, False),
    "103 with a body": ([HINTS + b"x", GOOD], BROKEN, False), "200 twice": ([GOOD * 2], FIRST, False),
    "a byte after the response": ([GOOD + b"\n"], FIRST, False),
    "a late byte after the response": ([GOOD, b"\n"], FIRST, False),
    "a late 408 after the response": ([GOOD, LATE_408, None], FIRST, False),
    "longer than announced": ([changed(announced=len(BODY) - 1)], NOT_JSON, False),
    "shorter than announced, then closed": ([changed(announced=len(BODY) + 1), None], BROKEN, False),
    "no length, then closed": ([changed(b"X: y"), None], FIRST, False),
    "chunked": ([changed(b"Transfer-Encoding: chunked", body=CHUNKS)], FIRST, True),
    "2.5 MB": ([TOO_LONG], LONG, False), "100,000 chunks": ([MANY_CHUNKS], LONG, False),
    "204 with a body": ([GOOD.replace(b"200", b"204")], "verifier_http_204", False),
    "HTTP/1.0": ([changed(version=b"1.0")], FIRST, False),
    "a head of 20 kB in pieces": ([large_head(20_000)[:17_000], large_head(20_000)[17_000:]], FIRST, True),
    "the longest head": ([large_head(HEAD_LIMIT_BYTES)], FIRST, True),
    "a byte more": ([LONG_HEAD], LONG, False),
    "a byte more, in pieces": ([LONG_HEAD[:9], LONG_HEAD[9:]], LONG, False),
    "hints longer than a head": ([LONG_HINT * 2 + GOOD], LONG, False),
    "endless header": ([b"HTTP/1.1 200 OK\r\nX: " + b"y" * 300_000], LONG, False),
    "endless headers": ([b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 50_000], LONG, False),
    "endless continue": ([b"HTTP/1.1 100 Continue\r\n\r\n" * 20_000], LONG, False),
    "a byte order mark": ([response(200, b"\xef\xbb\xbf" + BODY)], FIRST, True),
    "Connection: x, Close": ([changed(b"Connection: x, Close" + LENGTH)], FIRST, False),
}  # fmt: skip


def outcome(verifier, key: str) -> str:
    try:
        return verifier.verify(key).external_id
    except ServiceError as ex:
        return ex.reason


class Stub:
    """Sends *pieces* in response to the first key; accepts a second one, and no other."""

    def __init__(self):
        self.pieces, self.all_sent = [], Event()

    def __call__(self, client, request):
        key = json.loads(request.body)["key"]
        if key == "first":
            try:
                for number, piece in enumerate(filter(None, self.pieces)):
                    time.sleep(LATE if number else 0)
                    client.sendall(piece)  # which fails if the verifier leaves before all is sent
            finally:
                self.all_sent.set()
            return None not in self.pieces
        client.sendall(response(200, accepted(NEXT) if key == "next" else verification("NOT_FOUND")))
        return True


@pytest.mark.parametrize("is_encrypted", [False, True], ids=["plain", "TLS"])
@pytest.mark.parametrize(("pieces", "first", "is_kept"), CASES.values(), ids=CASES)
def test_next_key_has_its_own_outcome(tls_server, make_verifier, is_encrypted, pieces, first, is_kept):
    with tls_server("127.0.0.1") if is_encrypted else http_server() as stub:
        stub.behave = Stub()
        verifier = make_verifier(stub.url, 1.0 if first == TIMEOUT else 10.0)
        assert outcome(verifier, "next") == NEXT
        stub.behave.pieces = pieces
        outcomes = [outcome(verifier, "first")]
        assert is_kept or stub.behave.all_sent.wait(10)
        outcomes += [outcome(verifier, key) for key in ("unknown", "next", "unknown")]
        assert outcomes == [first, "key_unknown", NEXT, "key_unknown"]
        assert stub.connections == (1 if is_kept else 2)
