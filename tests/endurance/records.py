"""What the clients of a long run record: one fixed-size record for each operation.

An operation is known by its number.  Its request id, its Idempotency-Key and the content of its request body
follow from that number, so that the record needs none of them.
"""

import json
import random
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from stackmgr.stacks.eip55 import eip55
from tests.support.examples import ADDRESSES, PRESETS
from tests.support.workload import KEY_CANARY

CREATE, CONFLICT, UPDATE, GET = range(4)
NO_UUID = bytes(16)

_FORMAT = struct.Struct("<IBBHIdd?16s16sI")
_ALLOCATIONS = 64


class Record(NamedTuple):
    """An operation and its outcome.

    `key` is the number of the operation that used the Idempotency-Key first; `manager` a position in the
    list of managers.  `status` is 0 without a response, `reached` false where no server took the request.
    `stack` and `revision` are those of the response, `digest` that of its content.
    """

    number: int
    kind: int
    manager: int
    status: int
    key: int
    sent: float
    completed: float
    reached: bool = True
    stack: bytes = NO_UUID
    revision: bytes = NO_UUID
    digest: int = 0

    def pack(self) -> bytes:
        return _FORMAT.pack(*self)


def read(path: Path) -> Iterator[Record]:
    """Return the records of a file, one after the other."""
    with path.open("rb") as file:
        while packed := file.read(_FORMAT.size):
            yield Record(*_FORMAT.unpack(packed))


def request_id(number: int) -> str:
    return f"endurance-{number}"


def idempotency_key(number: int) -> str:
    return f"{KEY_CANARY}{number}"


def _allocations() -> list[list[dict[str, Any]]]:
    chance = random.Random(0)  # noqa: S311 - the same in every process
    made = []
    for _ in range(_ALLOCATIONS):
        addresses = sorted(chance.sample(ADDRESSES, chance.randint(1, 10)))
        cuts = sorted(chance.choices(range(10001), k=len(addresses) - 1))
        weights = [high - low for low, high in zip([0, *cuts], [*cuts, 10000], strict=True)]
        made.append(
            [
                {"token_address": address, "weight_bps": weight}
                for address, weight in zip(addresses, weights, strict=True)
            ]
        )
    return made


ALLOCATIONS = _allocations()
# Each in the order and the spelling of the database, and in others that mean the same.
_SPELLED = [
    (
        json.dumps(items),
        json.dumps([item | {"token_address": eip55(item["token_address"])} for item in reversed(items)]),
    )
    for items in ALLOCATIONS
]


class Content(NamedTuple):
    """What operation *number* supplies; None for what it leaves as it is."""

    name: str | None
    allocation: list[dict[str, Any]] | None
    preset: str | None


def _choice(number: int) -> tuple[int, int, int]:
    """Return which fields an update supplies, which allocation and which preset an operation has."""
    mixed = zlib.crc32(b"%d" % number)
    return mixed % 7 + 1, mixed // 7 % _ALLOCATIONS, mixed // 1024 % len(PRESETS)


def supplied(number: int, *, complete: bool) -> Content:
    """Return the content of the operation, with every field or those of an update."""
    fields, allocation, preset = _choice(number)
    fields = 7 if complete else fields
    return Content(
        f"Stack {number}" if fields & 1 else None,
        ALLOCATIONS[allocation] if fields & 2 else None,
        PRESETS[preset] if fields & 4 else None,
    )


def body(number: int, *, complete: bool, spelling: int = 0) -> bytes:
    """Return the request body, in one of two spellings that mean the same."""
    fields, allocation, preset = _choice(number)
    fields = 7 if complete else fields
    parts = (
        f'"name":"Stack {number}"' if fields & 1 else "",
        f'"allocation":{_SPELLED[allocation][spelling]}' if fields & 2 else "",
        f'"schedule":{{"preset":"{PRESETS[preset]}"}}' if fields & 4 else "",
    )
    return f"{{{','.join(part for part in parts[:: 1 - 2 * spelling] if part)}}}".encode()


def digest(name: str, allocation: list[dict[str, Any]], preset: str) -> int:
    """Return a checksum of the content of a stack."""
    return zlib.crc32(json.dumps([name, allocation, preset]).encode())
