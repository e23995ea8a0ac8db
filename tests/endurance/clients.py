"""Cheap clients: one process, kept connections, and one record for each operation.

Parsing is minimal; of a sample of the responses, and of every error, all is checked that the contract states.
"""

import http.client
import io
import json
import random
import re
import select
import socket
import time
from collections import Counter, deque
from ctypes import c_bool, c_int, c_longlong
from dataclasses import dataclass, field
from multiprocessing.sharedctypes import RawValue
from typing import Any, BinaryIO
from uuid import UUID

from tests.endurance.records import (
    CONFLICT,
    CREATE,
    GET,
    UPDATE,
    Record,
    body,
    digest,
    idempotency_key,
    request_id,
)
from tests.support.client import STACKS, check_response
from tests.support.workload import KEY_CANARY

# Seconds without a response after which a client gives up: far above any deadline of the service.
_PATIENCE = 30.0
# Seconds that a client waits after an error, in the mean.
_PAUSE = 0.1
_SAMPLE = 50
_POLL_SECONDS = 0.02
_RECENT = 12
_REPLAY = -1
_KINDS, _WEIGHTS = (CREATE, _REPLAY, CONFLICT, UPDATE, GET), (22, 14, 2, 56, 6)
_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]+)\r\n", re.IGNORECASE)
_CLOSES = re.compile(rb"\r\nconnection: *close\r\n", re.IGNORECASE)
_LISTED = 50


@dataclass
class Summary:
    """What the clients saw.  Times are in seconds; violations are those a response shows by itself."""

    outcomes: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0
    longest_gap: float = 0.0
    violations: list[str] = field(default_factory=list)


@dataclass
class Shared:
    """What the process of the clients shares with the one that started it."""

    port: Any = field(default_factory=lambda: RawValue(c_int))
    acknowledged: Any = field(default_factory=lambda: RawValue(c_longlong))
    failed: Any = field(default_factory=lambda: RawValue(c_longlong))
    stopping: Any = field(default_factory=lambda: RawValue(c_bool))


@dataclass
class _Manager:
    position: int
    api_key: str
    recent: deque[str] = field(default_factory=lambda: deque(maxlen=_RECENT))
    keys: list[int] = field(default_factory=list)


@dataclass(eq=False)
class _Client:
    """One connection and the operation that is under way on it."""

    manager: _Manager
    due: float = 0.0
    connection: socket.socket | None = None
    received: bytes = b""
    number: int = 0
    kind: int = GET
    key: int = 0
    path: str = ""
    sent: float = 0.0
    busy: bool = False
    unsettled: int = 0  # the key of a creation whose outcome is unknown: it is sent again


class Clients:
    """All clients, in an event loop of their own."""

    def __init__(self, recording: BinaryIO, seed: int, keys: list[str], count: int, shared: Shared) -> None:
        self._chance = random.Random(seed)  # noqa: S311 - to be repeatable
        self._shared = shared
        self._recording = recording
        self._epoll = select.epoll()
        managers = [_Manager(position, key) for position, key in enumerate(keys)]
        self._clients = [_Client(managers[number % len(managers)]) for number in range(count)]
        self._idle = set(self._clients)
        self._connected: dict[int, _Client] = {}
        self._number = 0
        self._last_success = time.monotonic()
        self.summary = Summary()

    def run(self) -> None:
        """Go on until told to stop; then let each client finish its operation."""
        expiry = time.monotonic()
        while not self._shared.stopping.value or len(self._idle) < len(self._clients):
            now = time.monotonic()
            if not self._shared.stopping.value:
                for client in [client for client in self._idle if client.due <= now]:
                    self._begin(client, now)
            for descriptor, _ in self._epoll.poll(_POLL_SECONDS):
                client = self._connected[descriptor]
                self._receive(client)
                if not client.busy and client.due == 0.0 and not self._shared.stopping.value:
                    self._begin(client, time.monotonic())
            if now > expiry:
                expiry = now + 1
                self._expire(now)

    def _expire(self, now: float) -> None:
        for client in self._clients:
            if client.busy and now - client.sent > _PATIENCE:
                self._violation(f"{request_id(client.number)} got no response within {_PATIENCE:g} s")
                self._finish(client, 0)

    def _violation(self, what: str) -> None:
        if len(self.summary.violations) < _LISTED:
            self.summary.violations.append(what)
        self.summary.outcomes["violations"] += 1

    def _begin(self, client: _Client, now: float) -> None:
        self._idle.discard(client)
        self._number += 1
        client.number, client.sent, client.busy, client.due = self._number, now, True, 0.0
        request = self._request(client)
        try:
            if client.connection is None:
                self._connect(client)
            assert client.connection is not None
            client.connection.send(request)
        except ConnectionRefusedError:
            self._finish(client, 0, reached=False)
        except OSError:
            self._finish(client, 0)

    def _connect(self, client: _Client) -> None:
        made = socket.create_connection(("127.0.0.1", self._shared.port.value), _PATIENCE)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made.settimeout(0)
        client.connection, client.received = made, b""
        self._connected[made.fileno()] = client
        self._epoll.register(made, select.EPOLLIN)

    def _disconnect(self, client: _Client) -> None:
        if client.connection is not None:
            self._epoll.unregister(client.connection)
            del self._connected[client.connection.fileno()]
            client.connection.close()
            client.connection = None

    def _request(self, client: _Client) -> bytes:
        """Choose what the client does next, and return the bytes of the request."""
        manager, chance = client.manager, self._chance
        kind = chance.choices(_KINDS, _WEIGHTS)[0]
        client.key = client.number
        if client.unsettled:
            client.key, kind = client.unsettled, CREATE
        elif kind == CREATE or not manager.recent or not manager.keys:
            kind = CREATE
        elif kind in (_REPLAY, CONFLICT):
            recently = chance.random() < 0.5
            client.key = chance.choice(manager.keys[-_RECENT:] if recently else manager.keys)
            kind = CREATE if kind == _REPLAY else CONFLICT
        client.kind = kind
        if kind in (CREATE, CONFLICT):
            client.path, method = STACKS, "POST"
            source = client.number if kind == CONFLICT else client.key
            content = body(source, complete=True, spelling=client.number % 2)
        else:
            client.path = f"{STACKS}/{chance.choice(manager.recent)}"
            method = "GET" if kind == GET else "PATCH"
            content = body(client.number, complete=False, spelling=client.number % 2)
        return _bytes(client, method, content if kind != GET else b"")

    def _receive(self, client: _Client) -> None:
        assert client.connection is not None
        try:
            data = client.connection.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data or not client.busy:
            self._disconnect(client)
            if client.busy:
                self._finish(client, 0)
            elif data:
                self._violation(f"bytes without a request after {request_id(client.number)}")
            return
        client.received += data
        head, separator, content = client.received.partition(b"\r\n\r\n")
        if not separator:
            return
        head += b"\r\n"
        length = _LENGTH.search(head)
        if length is None or len(content) > int(length[1]):
            self._violation(f"{request_id(client.number)}: malformed response")
            self._finish(client, 0)
        elif len(content) == int(length[1]):
            client.received = b""
            self._respond(client, head, content)

    def _respond(self, client: _Client, head: bytes, content: bytes) -> None:
        status = int(head[9:12])
        if client.number % _SAMPLE == 0 or status >= 400:
            self._check(client, status, head, content)
        if client.manager.api_key.encode() in head + content or KEY_CANARY.encode() in head + content:
            self._violation(f"{request_id(client.number)}: a secret is in the response")
        if _CLOSES.search(head):
            self._disconnect(client)
        self._finish(client, status, content=content if status < 300 else None)

    def _check(self, client: _Client, status: int, head: bytes, content: bytes) -> None:
        headers = http.client.parse_headers(io.BytesIO(head.partition(b"\r\n")[2] + b"\r\n"))
        method = {GET: "GET", UPDATE: "PATCH"}.get(client.kind, "POST")
        try:
            check_response(method, client.path, status, headers, content)
            assert headers["X-Request-Id"] == request_id(client.number)
        except (AssertionError, LookupError, ValueError) as ex:
            self._violation(f"{request_id(client.number)}: {status} {content!r}: {type(ex).__name__} {ex}")

    def _finish(
        self, client: _Client, status: int, *, reached: bool = True, content: bytes | None = None
    ) -> None:
        now = time.monotonic()
        if status == 0:
            self._disconnect(client)
        client.busy = False
        self._idle.add(client)
        fields: tuple[Any, ...] = ()
        if content is not None:
            stack = json.loads(content)
            self._note_success(client, now, status, stack["id"])
            fields = (
                UUID(stack["id"]).bytes,
                UUID(stack["current_revision_id"]).bytes,
                digest(stack["name"], stack["allocation"], stack["schedule"]["preset"]),
            )
        elif status != 409:
            self._shared.failed.value += 1
            client.due = now + self._chance.expovariate(1 / _PAUSE)
            if client.kind == CREATE and reached and status in (0, 500):
                client.unsettled = client.key
        if status:
            self.summary.slowest = max(self.summary.slowest, now - client.sent)
        self.summary.outcomes[_outcome(client.kind, status, reached=reached)] += 1
        completed = now if status else float("inf")
        head = (
            client.number,
            client.kind,
            client.manager.position,
            status,
            client.key,
            client.sent,
            completed,
        )
        self._recording.write(Record(*head, reached, *fields).pack())

    def _note_success(self, client: _Client, now: float, status: int, stack_id: str) -> None:
        self.summary.longest_gap = max(self.summary.longest_gap, now - self._last_success)
        self._last_success = now
        self._shared.acknowledged.value += client.kind != GET
        if client.kind == CREATE and (status == 201 or client.unsettled):
            client.unsettled = 0
            client.manager.keys.append(client.key)
            client.manager.recent.append(stack_id)


def _bytes(client: _Client, method: str, content: bytes) -> bytes:
    lines = (
        f"{method} {client.path} HTTP/1.1\r\nHost: localhost\r\n"
        f"Authorization: Bearer {client.manager.api_key}\r\nX-Request-Id: {request_id(client.number)}\r\n"
    )
    if method == "POST":
        lines += f"Idempotency-Key: {idempotency_key(client.key)}\r\n"
    if content:
        lines += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n"
    return lines.encode() + b"\r\n" + content


def _outcome(kind: int, status: int, *, reached: bool) -> str:
    if not reached:
        return "not connected"
    if status in (0, 500):
        return "failed reads" if kind == GET else "500" if status else "no response"
    if status >= 300:
        return "rejected"
    return {GET: "reads", UPDATE: "updates"}.get(kind, "creates" if status == 201 else "replays")
