"""Malformed requests: valid ones changed in a few random places, the same sequence in every run."""

import json
import os
import random
from collections.abc import Iterator
from uuid import UUID

from tests.support.examples import configuration

SEED = int(os.environ.get("STACKMGR_FUZZ_SEED", "20261121"))
_TOKENS = [
    *(b"\r", b"\n", b"\r\n", b"\r\n\r\n", b" ", b"\t", b":", b";", b"//", b"\0", b"\x7f", b"\xff"),
    *(b"HTTP/1.1", b"Expect: 1\r\n", b"0\r\n\r\n", b"Content-Length: 5\r\n"),
    *(b"Transfer-Encoding: chunked\r\n", b"X-Request-Id: g\r\n", b"X-Request-Id: \r\n"),
    *(b"SCRIPT_NAME: /x\r\n", b"a" * 9000),
]


def fuzz_request_count(default: int) -> int:
    return int(os.environ.get("STACKMGR_FUZZ_REQUESTS", default))


def malformed_requests(count: int) -> Iterator[bytes]:
    """Yield *count* requests, each a valid one with one to four insertions, deletions or changes."""
    chance, valid = random.Random(SEED), _valid_requests()
    for _ in range(count):
        data = bytearray(chance.choice(valid))
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(data))
            action = chance.random()
            if action < 0.6:
                data[at:at] = chance.choice(_TOKENS)
            elif action < 0.8:
                del data[at : at + chance.randint(1, 4)]
            else:
                data[at] = chance.randrange(256)
        yield bytes(data)


def _valid_requests() -> list[bytes]:
    """Return each operation, each framing of a body, two pipelined requests, and paths of no operation."""
    fields = f"Host: localhost\r\nAuthorization: Bearer stackmgr_{'0' * 38}\r\nX-Request-Id: f\r\n".encode()
    close = b"Connection: close\r\n"
    body = json.dumps(configuration(name="Mutated")).encode()
    length = b"Content-Length: %d\r\n" % len(body)
    chunks = b"14\r\n%s\r\n%x\r\n%s\r\n0\r\n\r\n" % (body[:20], len(body) - 20, body[20:])
    page = b"GET /manager/stacks?limit=2 HTTP/1.1\r\n" + fields
    create = b"POST /manager/stacks HTTP/1.1\r\n" + fields + b"Idempotency-Key: k\r\n"
    stack = f"/manager/stacks/{UUID(int=0)} HTTP/1.1\r\n".encode() + fields
    return [
        page + close + b"\r\n", b"GET " + stack + close + b"Accept: */*\r\n\r\n",
        create + close + length + b"\r\n" + body,
        create + close + b"Transfer-Encoding: chunked\r\n\r\n" + chunks,
        create + length + b"\r\n" + body + page + close + b"\r\n",
        b"PATCH " + stack + close + b'Content-Length: 15\r\n\r\n{"name": "New"}',
        b"GET /environ HTTP/1.1\r\nHost: x\r\nX-Request-Id: f\r\nAccept: */*\r\n" + close + b"\r\n",
        b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 7\r\n" + close + b'\r\n{"a":1}',
        b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n" + close
        + b"\r\n3\r\nabc\r\n0\r\n\r\n",
    ]  # fmt: skip
