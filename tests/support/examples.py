"""Valid request bodies, and helpers to change one field."""

import copy
import json
import random
from collections.abc import Mapping
from typing import Any

from stackmgr import paths
from stackmgr.stacks import whitelist
from stackmgr.stacks.configuration import Configuration, parse
from stackmgr.stacks.eip55 import eip55

TOKENS: list[dict[str, str]] = json.loads(paths.DEFAULT_WHITELIST.read_bytes())["tokens"]
_SPELLINGS = whitelist.load(paths.DEFAULT_WHITELIST).spellings
ADDRESSES = sorted(set(_SPELLINGS.values()))
PRESETS = ("hourly", "daily", "weekly", "monthly")
MISSING = "0f0e0d0c-0b0a-4988-8776-655443322110"  # an id that no stack has


def allocation(*items: tuple[Any, Any]) -> list[dict[str, Any]]:
    return [{"token_address": address, "weight_bps": weight} for address, weight in items]


CONFIGURATION: dict[str, Any] = {
    "name": "Growth",
    "allocation": allocation((eip55(ADDRESSES[1]), 6000), (ADDRESSES[0], 4000)),
    "schedule": {"preset": "weekly"},
}
# Another value of each field, in the form that is returned.
CHANGED: dict[str, Any] = {
    "name": " Income ",
    "allocation": allocation((ADDRESSES[3], 0), (ADDRESSES[5], 2500), (ADDRESSES[7], 7500)),
    "schedule": {"preset": "hourly"},
}
# Where a configuration is stored: each column, and its type in the schema `stackmgr`.
TYPES = {"name": "stack_name", "allocation": "allocation", "preset": "preset"}


def from_columns(columns: Mapping[str, Any]) -> dict[str, Any]:
    fields = {name: columns[name] for name in COLUMNS}
    return fields | {"schedule": {"preset": fields.pop("preset")}}


# What follows knows the fields from the lines above alone.
FIELDS = tuple(CONFIGURATION)
COLUMNS = Configuration._fields
COLUMN_NAMES = ", ".join(COLUMNS)
# Of a statement whose parameters are a stored configuration by column.
COLUMN_VALUES = ", ".join(f"%({column})s::stackmgr.{TYPES[column]}" for column in COLUMNS)
CONFIGURED = slice(2, 2 + len(COLUMNS))  # of a stack of the repository


def stored(body: dict[str, Any]) -> Configuration:
    return Configuration(**parse(body, _SPELLINGS))


STORED = stored(CONFIGURATION)


def configuration(**fields: Any) -> dict[str, Any]:
    return copy.deepcopy(CONFIGURATION) | fields


def allocation_text(*items: tuple[str, int]) -> str:
    return json.dumps(allocation(*items), separators=(",", ":"))


def random_allocation(chance: random.Random, tokens: int) -> list[dict[str, Any]]:
    addresses = sorted(chance.sample(ADDRESSES, tokens))
    cuts = sorted(chance.choices(range(10001), k=tokens - 1))
    weights = [high - low for low, high in zip([0, *cuts], [*cuts, 10000], strict=True)]
    return allocation(*zip(addresses, weights, strict=True))


def spread(addresses: list[str]) -> list[dict[str, Any]]:
    return allocation(*((address, 0 if number else 10000) for number, address in enumerate(addresses)))


def padded(document: Any, length: int) -> bytes:
    """Return *document* as a JSON text of exactly *length* bytes, padded with whitespace."""
    text = json.dumps(document).encode()
    return text + b" " * (length - len(text))
