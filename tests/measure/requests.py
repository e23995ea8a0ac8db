"""The scenarios: requests prepared before the clock runs, so that sending them costs next to nothing."""

import json
import random
from dataclasses import dataclass, field
from pathlib import Path

from tests.support import examples
from tests.support.client import STACKS

_TOKENS_OF_A_STACK = 10
_PREPARED = 2000
_ALONE = {name: {name: 100} for name in ("get", "list", "create", "update")}
# What of a hundred requests each scenario consists of.
SCENARIOS = _ALONE | {"mixed": {"get": 60, "list": 15, "create": 15, "update": 10}}


@dataclass(frozen=True)
class SeededManager:
    """A manager with a key, and the ids of the stacks it can read."""

    external_id: str
    key: str
    stack_ids: list[str] = field(default_factory=list)


def configuration(chance: random.Random) -> str:
    allocation = examples.random_allocation(chance, _TOKENS_OF_A_STACK)
    return json.dumps(examples.configuration(name=f"Growth {chance.randrange(10**6)}", allocation=allocation))


def _head(method: str, path: str, manager: SeededManager) -> str:
    return f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {manager.key}\r\n"


def _with_body(body: str) -> str:
    return f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}"


def _prepared(operation: str, manager: SeededManager, chance: random.Random) -> tuple[str, ...]:
    """Return a request.  wrk puts a unique text between its parts, if there are two."""
    if operation == "list":
        return (_head("GET", STACKS, manager) + "\r\n",)
    if operation == "create":
        head = _head("POST", STACKS, manager) + "Idempotency-Key: "
        return head, "\r\n" + _with_body(configuration(chance))
    path = f"{STACKS}/{chance.choice(manager.stack_ids)}"
    if operation == "get":
        return (_head("GET", path, manager) + "\r\n",)
    body = json.dumps({"name": f"Renamed {chance.randrange(10**6)}"})
    return (_head("PATCH", path, manager) + _with_body(body),)


def write_lua(path: Path, scenario: str, managers: list[SeededManager]) -> Path:
    chance = random.Random(scenario)  # noqa: S311 - to be repeatable
    with path.open("w", encoding="ascii") as file:
        file.write("return {\n")
        for operation, share in SCENARIOS[scenario].items():
            for _ in range(_PREPARED * share // 100):
                parts = _prepared(operation, chance.choice(managers), chance)
                # What JSON escapes in ASCII, Lua reads the same.
                file.write(f"{{{','.join(map(json.dumps, parts))}}},\n")
        file.write("}\n")
    return path
