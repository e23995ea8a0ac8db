"""Valid request bodies, and helpers to change one field."""

import copy
import json
import random
from collections.abc import Mapping
from typing import Any

from stackmgr import paths
from stackmgr.stacks import whitelist
from stackmgr.stacks.configuration import Configuration
from stackmgr.stacks.eip55 import eip55

TOKENS: list[dict[str, str]] = json.loads(paths.default_whitelist().read_bytes())["tokens"]
ADDRESSES = sorted(set(whitelist.load(paths.default_whitelist()).spellings.values()))
PRESETS = ("hourly", "daily", "weekly", "monthly")

CONFIGURATION: dict[str, Any] = {
    "name": "Growth",
    "allocation": [
        {"token_address": eip55(ADDRESSES[1]), "weight_bps": 6000},
        {"token_address": ADDRESSES[0], "weight_bps": 4000},
    ],
    "schedule": {"preset": "weekly"},
}


# The fields of a configuration in a body, and the columns in which it is stored: known here alone.
FIELDS = tuple(CONFIGURATION)
COLUMNS = Configuration._fields


def from_columns(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration that *columns* hold, as a response has it."""
    fields = {name: columns[name] for name in COLUMNS}
    return fields | {"schedule": {"preset": fields.pop("preset")}}


def configuration(**fields: Any) -> dict[str, Any]:
    """Return a valid create body with the given fields replaced."""
    return copy.deepcopy(CONFIGURATION) | fields


def allocation(*items: tuple[Any, Any]) -> list[dict[str, Any]]:
    return [{"token_address": address, "weight_bps": weight} for address, weight in items]


def random_allocation(chance: random.Random, tokens: int) -> list[dict[str, Any]]:
    """Return an allocation to so many *tokens*, in normal form."""
    addresses = sorted(chance.sample(ADDRESSES, tokens))
    cuts = sorted(chance.choices(range(10001), k=tokens - 1))
    weights = [high - low for low, high in zip([0, *cuts], [*cuts, 10000], strict=True)]
    return allocation(*zip(addresses, weights, strict=True))


def spread(addresses: list[str]) -> list[dict[str, Any]]:
    """Return an allocation of all weight to the first of *addresses* and of none to the others."""
    return allocation(*((address, 0 if number else 10000) for number, address in enumerate(addresses)))


def padded(document: Any, length: int) -> bytes:
    """Return *document* as a JSON text of exactly *length* bytes, padded with whitespace."""
    text = json.dumps(document).encode()
    return text + b" " * (length - len(text))
