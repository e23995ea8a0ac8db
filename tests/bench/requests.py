"""The scenarios: requests prepared before the clock runs, so that sending them costs next to nothing."""

import json
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from tests.support import examples

TOKENS_OF_A_STACK = 10
_PREPARED = 2000


@dataclass(frozen=True)
class Manager:
    """A manager of the seed, with a key and the ids of the stacks it can read."""

    external_id: str
    key: str
    stack_ids: list[str]


@dataclass(frozen=True, kw_only=True)
class Task:
    """A load: so many clients, each on one connection, kept or, with *close*, new for each request.

    They send the next request as soon as a response is complete, or else, where *offered* is not zero, after
    pauses that make that many requests a second if responses take no time.
    """

    scenario: str
    connections: int
    seconds: int
    close: bool = False
    offered: float = 0.0

    @property
    def pause(self) -> float:
        """The mean pause in milliseconds."""
        return self.connections / self.offered * 1000 if self.offered else 0.0


@dataclass(frozen=True)
class Prepared:
    """A request; where it has a second part, the load generator puts something unique between the two."""

    method: str
    path: str
    head: str
    tail: str | None = None


def configuration(chance: random.Random) -> str:
    """Return a create body of ten tokens as JSON."""
    cuts = sorted(chance.sample(range(1, 10000), TOKENS_OF_A_STACK - 1))
    weights = [after - before for before, after in zip([0, *cuts], [*cuts, 10000], strict=True)]
    addresses = chance.sample(examples.ADDRESSES, TOKENS_OF_A_STACK)
    body = examples.configuration(
        name=f"Growth {chance.randrange(10**6)}",
        allocation=examples.allocation(*zip(addresses, weights, strict=True)),
    )
    return json.dumps(body)


def _head(method: str, path: str, manager: Manager) -> str:
    return f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {manager.key}\r\n"


def _with_body(body: str) -> str:
    return f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}"


def get(manager: Manager, chance: random.Random) -> Prepared:
    """Return a request for one stack."""
    path = f"/manager/stacks/{chance.choice(manager.stack_ids)}"
    return Prepared("GET", path, _head("GET", path, manager) + "\r\n")


def list_page(manager: Manager, chance: random.Random) -> Prepared:
    """Return a request for the first page, 25 stacks."""
    path = "/manager/stacks"
    return Prepared("GET", path, _head("GET", path, manager) + "\r\n")


def create(manager: Manager, chance: random.Random) -> Prepared:
    """Return a request for a new stack, under a key that is different each time it is sent."""
    path = "/manager/stacks"
    head = _head("POST", path, manager) + "Idempotency-Key: "
    return Prepared("POST", path, head, "\r\n" + _with_body(configuration(chance)))


def update(manager: Manager, chance: random.Random) -> Prepared:
    """Return a request for another name."""
    path = f"/manager/stacks/{chance.choice(manager.stack_ids)}"
    body = json.dumps({"name": f"Renamed {chance.randrange(10**6)}"})
    return Prepared("PATCH", path, _head("PATCH", path, manager) + _with_body(body))


_MAKERS: dict[str, Callable[[Manager, random.Random], Prepared]] = {
    "get": get,
    "list": list_page,
    "create": create,
    "update": update,
}
# What of a hundred requests each scenario consists of.
SCENARIOS: dict[str, dict[str, int]] = {name: {name: 100} for name in _MAKERS} | {
    "mixed": {"get": 60, "list": 15, "create": 15, "update": 10}
}


def prepare(scenario: str, managers: list[Manager]) -> list[Prepared]:
    """Return the requests of a scenario, in its proportions, the same each time for the same managers."""
    chance = random.Random(scenario)  # noqa: S311 - to be repeatable
    return [
        _MAKERS[operation](chance.choice(managers), chance)
        for operation, share in SCENARIOS[scenario].items()
        for _ in range(_PREPARED * share // 100)
    ]


def write_lua(path: Path, requests: Iterable[Prepared], *, close: bool) -> None:
    """Write the requests for `requests.lua`; with *close* each requests that its connection is closed."""
    with path.open("w", encoding="ascii") as file:
        file.write("return {\n")
        for request in requests:
            head = request.head
            if close:
                head = head.replace("\r\n", "\r\nConnection: close\r\n", 1)
            parts = [head] if request.tail is None else [head, request.tail]
            # What JSON escapes in ASCII, Lua reads the same.
            file.write(f"{{{','.join(map(json.dumps, parts))}}},\n")
        file.write("}\n")


def nonce() -> str:
    """Return what distinguishes the keys of one run from those of every other."""
    return uuid4().hex[:12]
