"""The scenarios: requests prepared before the clock runs, so that sending them costs next to nothing."""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.support import examples
from tests.support.client import STACKS

TOKENS_OF_A_STACK = 10
_PREPARED = 2000


@dataclass(frozen=True)
class SeededManager:
    """A manager with a key, and the ids of the stacks it can read."""

    external_id: str
    key: str
    stack_ids: list[str] = field(default_factory=list)


# A request.  Where it has a second part, the load generator puts something unique between the two.
Prepared = tuple[str, ...]


def configuration(chance: random.Random) -> str:
    """Return a create body of ten tokens as JSON."""
    cuts = sorted(chance.sample(range(1, 10000), TOKENS_OF_A_STACK - 1))
    weights = [after - before for before, after in zip([0, *cuts], [*cuts, 10000], strict=True)]
    addresses = chance.sample(examples.ADDRESSES, TOKENS_OF_A_STACK)
    allocation = examples.allocation(*zip(addresses, weights, strict=True))
    return json.dumps(examples.configuration(name=f"Growth {chance.randrange(10**6)}", allocation=allocation))


def _head(method: str, path: str, account: SeededManager) -> str:
    return f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {account.key}\r\n"


def _with_body(body: str) -> str:
    return f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}"


def _get(account: SeededManager, chance: random.Random) -> Prepared:
    return (_head("GET", f"{STACKS}/{chance.choice(account.stack_ids)}", account) + "\r\n",)


def _list(account: SeededManager, chance: random.Random) -> Prepared:
    return (_head("GET", STACKS, account) + "\r\n",)


def _create(account: SeededManager, chance: random.Random) -> Prepared:
    return (
        _head("POST", STACKS, account) + "Idempotency-Key: ",
        "\r\n" + _with_body(configuration(chance)),
    )


def _update(account: SeededManager, chance: random.Random) -> Prepared:
    body = json.dumps({"name": f"Renamed {chance.randrange(10**6)}"})
    return (_head("PATCH", f"{STACKS}/{chance.choice(account.stack_ids)}", account) + _with_body(body),)


_MAKERS: dict[str, Callable[[SeededManager, random.Random], Prepared]] = {
    "get": _get,
    "list": _list,
    "create": _create,
    "update": _update,
}
# What of a hundred requests each scenario consists of.
SCENARIOS: dict[str, dict[str, int]] = {name: {name: 100} for name in _MAKERS} | {
    "mixed": {"get": 60, "list": 15, "create": 15, "update": 10}
}


def write_lua(path: Path, scenario: str, accounts: list[SeededManager]) -> Path:
    """Write a scenario's requests for `requests.lua`, the same each time for the same accounts."""
    chance = random.Random(scenario)  # noqa: S311 - to be repeatable
    with path.open("w", encoding="ascii") as file:
        file.write("return {\n")
        for operation, share in SCENARIOS[scenario].items():
            for _ in range(_PREPARED * share // 100):
                parts = _MAKERS[operation](chance.choice(accounts), chance)
                # What JSON escapes in ASCII, Lua reads the same.
                file.write(f"{{{','.join(map(json.dumps, parts))}}},\n")
        file.write("}\n")
    return path
