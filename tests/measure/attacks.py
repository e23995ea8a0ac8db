"""Requests by which one client makes others wait: prepared as bytes, and how they are sent."""

import json
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

from stackmgr.limits import BODY_LIMIT_BYTES
from tests.support import examples

COLLECTION = "/manager/stacks"
_CONNECTIONS = 16
_TIMEOUT_SECONDS = 10.0
_NAME = "x" * (BODY_LIMIT_BYTES - 300)


@dataclass(frozen=True)
class Target:
    """The attacker's means: a key, a key at its quota, the id of a stack, and cursors of its pages."""

    key: str
    limited_key: str
    stack_id: str
    cursors: list[str]


@dataclass(frozen=True)
class Attack:
    """Requests that each connection repeats; *count* of each are sent before the responses are read.

    With *renews*, each goes out on a new connection; with *leaves*, that is closed before the
    response; with *drips*, long ones go out byte by byte.  With *meets_new_clients*, so does each
    request of the other client.  *read_bytes* and *pause* are of a client that reads slowly.  With
    *verify_seconds*, keys are verified by a remote verifier that takes so long.
    """

    name: str
    make: Callable[[Target], list[bytes]]
    connections: int = _CONNECTIONS
    count: int = 1
    renews: bool = False
    leaves: bool = False
    drips: bool = False
    meets_new_clients: bool = False
    verify_seconds: float = 0.0
    read_bytes: int = 262_144
    pause: float = 0.0


def request(method: str, path: str, key: str, body: bytes | None = None, *fields: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", *fields]
    if key:
        lines.append(f"Authorization: Bearer {key}")
    if method == "POST" and not any(each.startswith("Idempotency-Key") for each in fields):
        lines.append("Idempotency-Key: attack")
    if body is not None and "Transfer-Encoding: chunked" not in fields:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")


def _body(body: bytes) -> Callable[[Target], list[bytes]]:
    assert len(body) <= BODY_LIMIT_BYTES
    return lambda target: [request("POST", COLLECTION, target.key, body)]


def _list(*members: str) -> bytes:
    text = ",".join(members)
    return f"[{','.join([text] * ((BODY_LIMIT_BYTES - 2) // (len(text) + 1)))}]".encode()


def _padded_items() -> bytes:
    items = [json.dumps(item) for item in examples.spread(examples.ADDRESSES)]
    text = f"[{','.join(' ' * 8_500 + item for item in items)}]"
    return f'{{"name":"n","allocation":{text},"schedule":{{"preset":"daily"}}}}'.encode()


def _configuration(name: str) -> bytes:
    return json.dumps(examples.configuration(name="")).replace('""', name, 1).encode()


def _chunked(body: bytes) -> Callable[[Target], list[bytes]]:
    return lambda _: [request("POST", COLLECTION, "", body, "Transfer-Encoding: chunked")]


def _on_stack(
    method: str = "GET", body: bytes | None = None, fields: Sequence[str] = (), *, is_limited: bool = False
) -> Callable[[Target], list[bytes]]:
    def make(target: Target) -> list[bytes]:
        key = target.limited_key if is_limited else target.key
        return [request(method, f"{COLLECTION}/{target.stack_id}", key, body, *fields)]

    return make


def _list_pages(query: str) -> Callable[[Target], list[bytes]]:
    return lambda target: [request("GET", f"{COLLECTION}?{query}", target.key)]


def _cursors(target: Target) -> list[bytes]:
    return [request("GET", f"{COLLECTION}?limit=1&cursor={each}", target.key) for each in target.cursors]


def _invalid_keys(target: Target) -> list[bytes]:
    path = f"{COLLECTION}/{target.stack_id}"
    return [request("GET", path, f"stk_invalid_{number:029}") for number in range(10_000)]


def _long_keys(target: Target) -> list[bytes]:
    body = json.dumps(examples.configuration()).encode()
    keys = [f"Idempotency-Key: {'k' * 2_675}{digit}" for digit in range(10)]
    return [request("POST", COLLECTION, target.key, body, key) for key in keys]


_MEMBERS = ("{" + ",".join(f'"{number:05x}":0' for number in range(26_000)) + "}").encode()
_UPDATE = b'{"schedule":{"preset":"daily"}}'
_FIELDS = [f"X-Field-{number}: {'v' * 600}" for number in range(95)]
_WRONG_KEY = [request("GET", COLLECTION, "wrong")]
_MALFORMED = [b"BAD\r\n\r\n"]
_DRIPPED = [request("GET", COLLECTION, "wrong", None, "X: " + "a" * 2_000)]
_TINY_CHUNKS = _chunked(b"1\r\nx\r\n" * 262_000 + b"0\r\n\r\n")
_ENDLESS_CHUNKS = _chunked(b"1\r\nx\r\n" * 262_000)
_TOKENS = _chunked((b"1;%b\r\nx\r\n" % (b"a" * 8_100)) * 30 + b"0\r\n\r\n")
_QUOTED = _chunked((b'1;a="%b"\r\nx\r\n' % (b"\\a" * 4_000)) * 30 + b"0\r\n\r\n")
_TRAILERS = _chunked(b"0\r\n" + b"".join(b"A%d: %b\r\n" % (n, b"b" * 600) for n in range(90)) + b"\r\n")
ATTACKS = [
    Attack("nested lists", _body(_list("[" * 900 + "]" * 900))),
    Attack("empty objects", _body(_list("{}"))), Attack("26,000 members", _body(_MEMBERS)),
    Attack("floats", _body(_list("1e1", "0.1"))), Attack("pages of 100", _list_pages("limit=100")),
    Attack("one-byte chunks, 8", _TINY_CHUNKS, 8), Attack("one-byte chunks, 64", _TINY_CHUNKS, 64),
    Attack("integers of 4,300 digits", _body(_list("9" * 4_300))),
    Attack("a float of 262,000 digits", _body(b"[0." + b"9" * 262_000 + b"]")),
    Attack("deep nesting", _body(b"[" * BODY_LIMIT_BYTES)), Attack("strings in a list", _body(_list('""'))),
    Attack("unterminated strings", _body((b'"' + b"\\" * 1_001) * 261)),
    Attack("whitespace before 30 items", _body(_padded_items())),
    Attack("escapes in a name, 409", _body(_configuration('"' + "\\u0041" * 43_000 + '"'))),
    Attack("names of 256 KB, 409", _body(_configuration(f'"{_NAME}"'))),
    Attack("maximal Idempotency-Keys", _long_keys), Attack("fields of 60 KB", _on_stack(fields=_FIELDS)),
    Attack("16 GETs in a pipeline", _on_stack(), count=16),
    Attack("slow readers of pages", _list_pages("limit=100"), 32, read_bytes=65_536, pause=0.1),
    Attack("cursors", _cursors),
    Attack("encoded query strings", _list_pages(f"limit={'%30' * 1_200}1")),
    Attack("updates of one stack", _on_stack("PATCH", _UPDATE), 32),
    Attack("a key at its quota", _on_stack(is_limited=True)), Attack("GETs, 32", _on_stack(), 32),
    Attack("keys of a wrong form, 300", lambda _: _WRONG_KEY, 300),
    Attack("keys of a wrong form, 500", lambda _: _WRONG_KEY, 500),
    Attack("malformed heads, 64", lambda _: _MALFORMED, 64, renews=True),
    Attack("malformed heads and drips, 128", lambda _: _MALFORMED + _DRIPPED, 128, renews=True, drips=True),
    Attack("a connection for each GET", _on_stack(), renews=True), Attack("chunk extensions", _TOKENS),
    Attack("quoted chunk extensions", _QUOTED), Attack("trailers", _TRAILERS),
    Attack("one-byte chunks, closed at once", _ENDLESS_CHUNKS, 64, leaves=True),
    Attack("uploads of 256 KB, 64", _body(_configuration(f'"{_NAME}"')), 64),
    Attack("connections that send nothing", lambda _: [b""], 4, leaves=True, meets_new_clients=True),
    Attack("invalid keys, slow verifier", _invalid_keys, 32, verify_seconds=0.5),
]  # fmt: skip


@dataclass(frozen=True)
class Door:
    """Where requests go: the worker itself or, with the certificate of its authority, nginx."""

    port: int
    authority: Path | None = None

    def connect(self, source: str, receive_buffer: int = 0) -> socket.socket:
        plain = socket.socket()
        plain.settimeout(_TIMEOUT_SECONDS)
        if receive_buffer:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        plain.bind((source, 0))
        plain.connect(("127.0.0.1", self.port))
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.authority is None:
            return plain
        context = ssl.create_default_context(cafile=self.authority)
        return context.wrap_socket(plain, server_hostname="localhost")


class StatusReader:
    """Reads responses from a connection and keeps nothing of their bodies."""

    def __init__(self, sock: socket.socket, read_bytes: int = 262_144, pause: float = 0.0) -> None:
        self._socket, self._pause, self._rest = sock, pause, b""
        self._buffer = memoryview(bytearray(read_bytes))

    def status(self) -> int:
        head = self._rest
        while (end := head.find(b"\r\n\r\n") + 4) < 4:
            head += self._read(len(self._buffer))
        length = int(head[:end].lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        self._rest = head[end + length :]
        missing = end + length - len(head)
        while missing > 0:
            time.sleep(self._pause)
            missing -= len(self._read(missing))
        return int(head[9:12])

    def _read(self, limit: int) -> memoryview:
        count = self._socket.recv_into(self._buffer, min(limit, len(self._buffer)))
        if not count:
            raise ConnectionError
        return self._buffer[:count]


def repeat(attack: Attack, door: Door, target: Target, connections: int, end: float) -> Counter[str]:
    found: Counter[str] = Counter()
    requests = [each * attack.count for each in attack.make(target)]

    def work(number: int) -> None:
        mine = requests[number % len(requests) :] + requests
        while time.monotonic() < end:
            try:
                with door.connect("127.0.0.2", 65_536 if attack.pause else 0) as sock:
                    for status in _exchanges(attack, sock, mine, end):
                        found[status] += 1
            except (OSError, ValueError):
                found["closed"] += 1
                time.sleep(0.01)

    threads = [threading.Thread(target=work, args=(each,), daemon=True) for each in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, end + 1 - time.monotonic()))
    return found


def _exchanges(attack: Attack, sock: socket.socket, requests: list[bytes], end: float) -> Iterator[str]:
    reader = StatusReader(sock, attack.read_bytes, attack.pause)
    for each in cycle(requests):
        if time.monotonic() > end:
            return
        size = 1 if attack.drips and len(each) > 100 else len(each) or 1
        with suppress(ConnectionError):  # the response may have come before all was sent
            for at in range(0, len(each), size):
                sock.sendall(each[at : at + size])
        if attack.leaves:
            yield "none"
            return
        for _ in range(attack.count):
            yield str(reader.status())
        if attack.renews:
            return
