"""Random clients of a running service, each a thread, and a record of each request and response."""

import http.client
import json
import random
import socket
import ssl
import threading
import time
from dataclasses import dataclass, field
from uuid import uuid4

from stackmgr.operate import keys
from stackmgr.stacks.eip55 import eip55
from tests.support.client import STACKS, check_response
from tests.support.examples import FIELDS, PRESETS, configuration, random_allocation
from tests.support.history import Configuration, Operation
from tests.support.http_wire import RawClient, head
from tests.support.recorder import opened
from tests.support.server import Response

# What every Idempotency-Key begins with: no log and no response is to hold it.
KEY_CANARY = "canary-key-"
# Seconds without a response after which a client gives up: longer than replacing a worker that hangs takes.
TIMEOUT = 45.0
_WEIGHTS = {"create": 12, "replay": 12, "update": 40, "get": 26, "list": 4, "foreign": 6}
# Seconds, in the mean, until the next request of a client that got no result.
_PAUSE = 0.05
_RECENT = 4
_LISTED = 20
_chance = random.Random(1)  # noqa: S311 - to be repeatable
ALLOCATIONS = [random_allocation(_chance, _chance.randint(1, 4)) for _ in range(64)]
# Equal objects of responses become these, so that a long record stays small.
_SHARED = {json.dumps(items): items for items in ALLOCATIONS}
_SCHEDULES = {preset: {"preset": preset} for preset in PRESETS}


@dataclass
class Manager:
    external_id: str
    api_key: str
    stack_ids: list[str] = field(default_factory=list)
    creations: list[tuple[str, Configuration]] = field(default_factory=list)


def new_managers(url: str, number: int = 3) -> list[Manager]:
    ids = [str(uuid4()) for _ in range(number)]
    with opened(url, role="stackmgr_owner", pool_size=1) as operator:
        session = operator.session()
        return [Manager(external_id, keys.create(session, external_id).key) for external_id in ids]


@dataclass
class _Client:
    number: int
    manager: Manager
    other: Manager
    count: int = 0
    wire: RawClient | None = None
    method: str = ""
    path: str = ""
    unsettled: Operation | None = None  # a create whose outcome is unknown: it is sent again

    def disconnect(self) -> None:
        if self.wire is not None:
            self.wire.close()
            self.wire = None


class Workload:
    """Clients, spread over the managers, each of which sends a request once it has the response of the last.

    They go to a loopback port, with TLS if there is a *tls* context, over a connection for each
    request or, if it *keeps* them, over connections that last as long as the server lets them.
    """

    def __init__(
        self,
        seed: int,
        managers: list[Manager],
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
        keeps: bool = False,
        lists: bool = True,
    ) -> None:
        self._seed = seed
        self._chance = random.Random(seed)  # noqa: S311 - to be repeatable
        self._managers = managers
        self._port = port
        self._tls = tls
        self._keeps = keeps
        self._weights = _WEIGHTS if lists else _WEIGHTS | {"list": 0}
        self._pause = 0.0
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._failure: BaseException | None = None
        self._problems: list[str] = []
        self.operations: list[Operation] = []
        self.acknowledged = 0  # writes

    def start(self, clients: int, *, pause: float = 0.0) -> None:
        self._pause = pause
        for number in range(clients):
            manager = self._managers[number % len(self._managers)]
            others = [each for each in self._managers if each is not manager]
            client = _Client(number, manager, self._chance.choice(others))
            self._threads.append(threading.Thread(target=self._run, args=(client,), daemon=True))
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopped.set()
        ends = time.monotonic() + TIMEOUT + 15
        for thread in self._threads:
            thread.join(max(0.0, ends - time.monotonic()))
            assert not thread.is_alive(), "a client has not ended"
        if self._failure is not None:
            raise self._failure
        assert not self._problems, "\n".join(self._problems)

    def check_running(self) -> None:
        assert all(thread.is_alive() for thread in self._threads), self._failure

    def _run(self, client: _Client) -> None:
        try:
            while not self._stopped.is_set():
                is_settled = self._act(client)
                pause = self._pause if is_settled else max(self._pause, _PAUSE)
                self._stopped.wait(self._chance.expovariate(1 / pause) if pause else 0.0)
        except BaseException as ex:  # noqa: BLE001 - raised by stop
            self._failure = ex
            self._stopped.set()
        finally:
            client.disconnect()

    def _problem(self, what: str) -> None:
        if len(self._problems) < _LISTED:
            self._problems.append(what)

    def _act(self, client: _Client) -> bool:
        operation, document = self._choose(client)
        self.operations.append(operation)
        operation.sent = time.monotonic()
        try:
            wire = self._connected(client)
            wire.send(_bytes(client, operation, document))
            response = wire.response(client.method)
        except (OSError, http.client.HTTPException) as ex:
            operation.ended = time.monotonic()
            operation.reached = not isinstance(ex, ConnectionRefusedError)
            if isinstance(ex, TimeoutError):
                self._problem(f"{operation.tag} got no response within {TIMEOUT:g} s")
            elif not isinstance(ex, OSError | http.client.IncompleteRead):
                self._problem(f"{operation.tag}: malformed response: {ex!r}")
            if operation.kind == "create":
                client.unsettled = operation
            client.disconnect()
            return False
        self._respond(client, operation, response)
        if not self._keeps or response.headers["Connection"] == "close":
            client.disconnect()
        return operation.status is not None and operation.status < 500

    def _connected(self, client: _Client) -> RawClient:
        if client.wire is not None and not self._is_open(client.wire):
            client.disconnect()
        if client.wire is None:
            made = socket.create_connection(("127.0.0.1", self._port), TIMEOUT)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                made = self._tls.wrap_socket(made, server_hostname="localhost")
            client.wire = RawClient(made)
        return client.wire

    def _is_open(self, wire: RawClient) -> bool:
        wire.socket.settimeout(0)
        try:
            if received := wire.socket.recv(65536):
                self._problem(f"bytes without a request: {received!r}")
        except (BlockingIOError, ssl.SSLWantReadError):
            return True
        except OSError:
            pass
        finally:
            wire.socket.settimeout(TIMEOUT)
        return False

    def _choose(self, client: _Client) -> tuple[Operation, Configuration | None]:
        client.count += 1
        tag = f"{self._seed}-{client.number}-{client.count}"
        manager, chance = client.manager, self._chance
        operation = Operation(tag, "create", manager.external_id, 0.0)
        client.method, client.path = "POST", STACKS
        kind = chance.choices(list(self._weights), list(self._weights.values()))[0]
        owner = client.other if kind == "foreign" else manager
        if client.unsettled is not None:
            operation.key, operation.supplied = client.unsettled.key, client.unsettled.supplied
        elif kind == "list":
            operation.kind, client.method, client.path = "list", "GET", f"{STACKS}?limit=100"
        elif kind == "create" or not manager.creations or not owner.stack_ids:
            operation.key, operation.supplied = KEY_CANARY + tag, self._configuration(tag)
        elif kind == "replay":
            operation.key, operation.supplied = chance.choice(manager.creations)
            if chance.random() < 0.2:
                operation.supplied = operation.supplied | {"name": "other input"}
        else:
            writes = kind == "update" or (kind == "foreign" and chance.random() < 0.5)
            operation.kind, client.method = ("update", "PATCH") if writes else ("get", "GET")
            # One of the last few: clients are to meet.
            operation.stack_id = chance.choice(owner.stack_ids[-_RECENT:])
            operation.owner, client.path = owner.external_id, f"{STACKS}/{operation.stack_id}"
            if writes:
                given = chance.sample(FIELDS, chance.choice((1, 1, 1, 2, 3)))
                complete = self._configuration(tag)
                operation.supplied = {name: complete[name] for name in given}
        return operation, self._disguised(operation.supplied) if operation.supplied else None

    def _configuration(self, name: str) -> Configuration:
        """Return a configuration in normal form that no other operation uses."""
        schedule = _SCHEDULES[self._chance.choice(PRESETS)]
        return configuration(name=name, allocation=self._chance.choice(ALLOCATIONS), schedule=schedule)

    def _disguised(self, supplied: Configuration) -> Configuration:
        document = {name: supplied[name] for name in self._chance.sample(list(supplied), len(supplied))}
        if "allocation" in document:
            items = self._chance.sample(document["allocation"], len(document["allocation"]))
            respell = self._chance.random() < 0.5
            document["allocation"] = [
                item | {"token_address": eip55(item["token_address"])} if respell else item for item in items
            ]
        return document

    def _respond(self, client: _Client, operation: Operation, response: Response) -> None:
        operation.completed, operation.status = time.monotonic(), response.status
        headers, content = response.headers, response.body
        try:
            check_response(client.method, client.path, response.status, headers, content)
            assert headers["Content-Length"]
            assert headers["X-Request-Id"] == operation.tag
            for secret in (client.manager.api_key, KEY_CANARY):
                assert secret.encode() not in headers.as_bytes() + content
        except (AssertionError, LookupError, ValueError) as ex:
            self._problem(f"{operation.tag}: {operation.status} {content!r}: {type(ex).__name__} {ex}")
        operation.body = json.loads(content)
        for stack in operation.seen():
            stack["allocation"] = _SHARED.get(json.dumps(stack["allocation"]), stack["allocation"])
            stack["schedule"] = _SCHEDULES[stack["schedule"]["preset"]]
        with self._lock:
            self._note(client, operation)

    def _note(self, client: _Client, operation: Operation) -> None:
        """Remember what was created, and whether a create is to be sent again."""
        self.acknowledged += operation.writes and operation.acknowledged
        if operation.kind == "create":
            client.unsettled = operation if operation.status == 500 else None
            if operation.acknowledged:
                assert operation.key is not None
                client.manager.creations.append((operation.key, operation.supplied))
            if operation.status == 201:
                client.manager.stack_ids.append(operation.body["id"])


def _bytes(client: _Client, operation: Operation, document: Configuration | None) -> bytes:
    headers = {"Authorization": f"Bearer {client.manager.api_key}", "X-Request-Id": operation.tag}
    if operation.key is not None:
        headers["Idempotency-Key"] = operation.key
    body = b""
    if document is not None:
        body = json.dumps(document).encode()
        headers |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
    return head(client.method, client.path, headers) + body
