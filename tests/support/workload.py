"""Random clients that record their requests and responses, of an application or of a running service."""

import http.client
import json
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import webtest

from stackmgr.http.app import Application
from stackmgr.stacks.eip55 import eip55
from tests.support.client import STACKS, check_response
from tests.support.examples import ADDRESSES
from tests.support.greenlets import in_greenlets
from tests.support.history import Configuration, Operation

# Sends method, path, headers and body; returns status and body.  Raises ConnectionRefusedError if nothing
# was sent, and other kinds of OSError, or HTTPException, if no response came.
Transport = Callable[[str, str, dict[str, str], bytes], tuple[int, bytes]]

# What every Idempotency-Key begins with: no log and no response is to hold it.
KEY_CANARY = "canary-key-"

_WEIGHTS = {"create": 12, "replay": 12, "update": 40, "get": 26, "list": 4, "foreign": 6}
_NO_RESPONSE = (OSError, http.client.HTTPException)


def application_transport(app: Application) -> Transport:
    """Return the transport that calls *app* itself."""

    served = in_greenlets(app)

    def send(method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        response = webtest.TestApp(served).request(
            path, method=method, headers=headers, body=body, expect_errors=True
        )
        check_response(method, path, response.status_int, response.headers, response.body)
        _check_secrets(headers, response.headers, response.body)
        return response.status_int, response.body

    return send


def http_transport(port: Callable[[], int], timeout: float) -> Transport:
    """Return the transport to the service on a loopback *port*, with a connection for each request."""

    def send(method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", port(), timeout=timeout)
        try:
            connection.request(method, path, body or None, headers)
            response = connection.getresponse()
            content = response.read()
        finally:
            connection.close()
        check_response(method, path, response.status, response.headers, content)
        _check_secrets(headers, response.headers, content)
        return response.status, content

    return send


def kept_transport(connect: Callable[[], http.client.HTTPConnection]) -> Transport:
    """Return a transport on which each client keeps its connection for as long as the server does."""
    of_this_thread = threading.local()

    def send(method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        if not hasattr(of_this_thread, "connection"):
            of_this_thread.connection = connect()
        connection = of_this_thread.connection
        try:
            connection.request(method, path, body or None, headers)
            response = connection.getresponse()
            content = response.read()
        except _NO_RESPONSE:
            connection.close()
            raise
        check_response(method, path, response.status, response.headers, content)
        _check_secrets(headers, response.headers, content)
        return response.status, content

    return send


def _check_secrets(sent: dict[str, str], headers: Any, body: bytes) -> None:
    """Assert that a response repeats neither the Authorization nor the Idempotency-Key of its request."""
    response = f"{list(headers.items())}{body.decode()}"
    assert sent["Authorization"].removeprefix("Bearer ") not in response
    assert KEY_CANARY not in response


@dataclass
class Manager:
    """A manager, and what its clients know in common."""

    external_id: str
    api_key: str
    stack_ids: list[str] = field(default_factory=list)
    creations: list[tuple[str, Configuration]] = field(default_factory=list)


class Workload:
    """Clients, spread over the managers, that go on until each has done its part or they are stopped."""

    def __init__(self, seed: int, managers: list[Manager], transport: Transport) -> None:
        self._seed = seed
        self._managers = managers
        self._transport = transport
        self._stopped = threading.Event()
        self._clients: list[Future[None]] = []
        self.operations: list[Operation] = []

    def start(self, clients: int, *, operations: int | None = None, pause: float = 0.0) -> None:
        """Set the clients to work; *pause* is the mean time between two operations of one, in seconds."""
        pool = ThreadPoolExecutor(clients)
        self._clients = [pool.submit(self._client, number, operations, pause) for number in range(clients)]
        pool.shutdown(wait=False)

    def stop(self) -> None:
        """Let each client finish what it is at, and then end."""
        self._stopped.set()
        self.join()

    def join(self) -> None:
        """Wait for the clients to end by themselves."""
        wait(self._clients)
        for client in self._clients:
            client.result()

    def _client(self, number: int, operations: int | None, pause: float) -> None:
        chance = random.Random(f"{self._seed} {number}")  # noqa: S311 - to be repeatable
        client = _Client(f"{self._seed}-{number}", chance, self)
        manager = self._managers[number % len(self._managers)]
        while not self._stopped.is_set() and (operations is None or client.count < operations):
            client.act(manager, chance.choice([m for m in self._managers if m is not manager]))
            if pause:
                time.sleep(chance.expovariate(1 / pause))

    def send(self, operation: Operation, method: str, path: str, manager: Manager, document: Any) -> None:
        """Send a request, and record it whatever becomes of it."""
        headers = {"Authorization": f"Bearer {manager.api_key}", "X-Request-Id": operation.tag}
        if operation.key is not None:
            headers["Idempotency-Key"] = operation.key
        body = b""
        if document is not None:
            headers["Content-Type"] = "application/json"
            body = json.dumps(document).encode()
        self.operations.append(operation)
        operation.sent = time.monotonic()
        try:
            status, content = self._transport(method, path, headers, body)
        except _NO_RESPONSE as ex:
            operation.ended = time.monotonic()
            operation.reached = not isinstance(ex, ConnectionRefusedError)
            return
        operation.completed = time.monotonic()
        operation.status, operation.body = status, json.loads(content)


class _Client:
    def __init__(self, name: str, chance: random.Random, workload: Workload) -> None:
        self._name = name
        self._chance = chance
        self._workload = workload
        self.count = 0

    def act(self, manager: Manager, other: Manager) -> None:
        kind = self._chance.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
        if kind == "list":
            self._send("list", manager, "GET", f"{STACKS}?limit=100")
        elif kind == "create" or not manager.stack_ids or (kind == "foreign" and not other.stack_ids):
            self._create(manager, f"{KEY_CANARY}{self._name}-{self.count}", self._configuration())
        elif kind == "replay":
            key, supplied = self._chance.choice(manager.creations)
            if self._chance.random() < 0.2:
                supplied = supplied | {"name": "other input"}
            self._create(manager, key, supplied)
        elif kind == "update":
            self._item("PATCH", manager, self._recent(manager), manager)
        else:
            owner = manager if kind == "get" else other
            method = "GET" if kind == "get" or self._chance.random() < 0.5 else "PATCH"
            self._item(method, manager, self._recent(owner), owner)

    def _recent(self, owner: Manager) -> str:
        """Return one of a manager's last few stacks: clients are to meet."""
        return self._chance.choice(owner.stack_ids[-4:])

    def _create(self, manager: Manager, key: str, supplied: Configuration) -> None:
        """Create, and as long as the outcome is not known, create again: that is what the key is for."""
        for _ in range(20):
            document = self._disguised(supplied)
            made = self._send("create", manager, "POST", STACKS, document, supplied=supplied, key=key)
            if made.status in {200, 201}:
                manager.creations.append((key, supplied))
            if made.status == 201:
                manager.stack_ids.append(made.body["id"])
            if made.reached and (made.acknowledged or made.rejected):
                return
            time.sleep(0.05)

    def _item(self, method: str, manager: Manager, stack_id: str, owner: Manager) -> None:
        supplied: Configuration = {}
        if method == "PATCH":
            whole = self._configuration()
            for name in self._chance.sample(list(whole), self._chance.choice((1, 1, 1, 2, 3))):
                supplied[name] = whole[name]
        kind = "get" if method == "GET" else "update"
        document = self._disguised(supplied) if supplied else None
        self._send(
            kind,
            manager,
            method,
            f"{STACKS}/{stack_id}",
            document,
            supplied=supplied,
            stack_id=stack_id,
            owner=owner.external_id,
        )

    def _send(
        self, kind: str, manager: Manager, method: str, path: str, document: Any = None, **details: Any
    ) -> Operation:
        self.count += 1
        operation = Operation(f"{self._name}-{self.count}", kind, manager.external_id, 0.0, **details)
        self._workload.send(operation, method, path, manager, document)
        return operation

    def _configuration(self) -> Configuration:
        """Return a configuration in normal form that no other operation uses."""
        addresses = sorted(self._chance.sample(ADDRESSES, self._chance.randint(1, 4)))
        cuts = sorted(self._chance.choices(range(10001), k=len(addresses) - 1))
        weights = [high - low for low, high in zip([0, *cuts], [*cuts, 10000], strict=True)]
        return {
            "name": f"{UUID(int=self._chance.getrandbits(128))}",
            "allocation": [
                {"token_address": address, "weight_bps": weight}
                for address, weight in zip(addresses, weights, strict=True)
            ],
            "schedule": {"preset": self._chance.choice(("hourly", "daily", "weekly", "monthly"))},
        }

    def _disguised(self, supplied: Configuration) -> Configuration:
        """Return the same in another order and spelling."""
        document = {name: supplied[name] for name in self._chance.sample(list(supplied), len(supplied))}
        if "allocation" in document:
            items = self._chance.sample(document["allocation"], len(document["allocation"]))
            document["allocation"] = [
                item | {"token_address": eip55(item["token_address"])}
                if self._chance.random() < 0.5
                else item
                for item in items
            ]
        return document
