"""What a stack is configured with: the rules a JSON Schema cannot say, the normal form, its identity."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stackmgr.errors import InvalidConfiguration

TOTAL_BPS = 10000


@dataclass(frozen=True, slots=True)
class Configuration:
    """A complete configuration.  `allocation` is JSON text in normal form, as stored and as answered."""

    name: str
    allocation: str
    preset: str

    def digest(self) -> bytes:
        """Return the SHA-256 that tells one creation input from another.

        Receipts never expire, so this form may never change: the name and the preset as a JSON array in
        plain ASCII with no spaces, a line feed, then the normalised allocation.
        """
        head = json.dumps([self.name, self.preset], separators=(",", ":"))
        return hashlib.sha256(f"{head}\n{self.allocation}".encode("ascii")).digest()


@dataclass(frozen=True, slots=True)
class Changes:
    """The fields of an update; None stands for an omitted one."""

    name: str | None
    allocation: str | None
    preset: str | None


def check_name(name: str) -> str:
    """Return *name*, exactly, if it can be a stack's.  Raises InvalidConfiguration."""
    if name.isspace():
        raise InvalidConfiguration("name_blank")
    if "\0" in name:
        raise InvalidConfiguration("name_nul")
    try:
        name.encode("utf-8")
    except UnicodeEncodeError as ex:
        raise InvalidConfiguration("name_surrogate") from ex
    return name


def normalize_allocation(items: list[dict[str, Any]], spellings: Mapping[str, str]) -> str:
    """Return *items* as JSON text: lowercase addresses in ascending order.  Raises InvalidConfiguration."""
    weights: dict[str, int] = {}
    for item in items:
        address = spellings.get(item["token_address"])
        if address is None:
            raise InvalidConfiguration("token_unknown")
        if address in weights:
            raise InvalidConfiguration("token_repeated")
        weights[address] = item["weight_bps"]
    if sum(weights.values()) != TOTAL_BPS:
        raise InvalidConfiguration("weights_total")
    normal = (f'{{"token_address":"{token}","weight_bps":{bps}}}' for token, bps in sorted(weights.items()))
    return f"[{','.join(normal)}]"


def parse_create(document: dict[str, Any], spellings: Mapping[str, str]) -> Configuration:
    """Return the configuration that a create body, valid by its schema, asks for."""
    return Configuration(
        name=check_name(document["name"]),
        allocation=normalize_allocation(document["allocation"], spellings),
        preset=document["schedule"]["preset"],
    )


def parse_update(document: dict[str, Any], spellings: Mapping[str, str]) -> Changes:
    """Return the changes that an update body, valid by its schema, asks for."""
    return Changes(
        name=check_name(document["name"]) if "name" in document else None,
        allocation=(
            normalize_allocation(document["allocation"], spellings) if "allocation" in document else None
        ),
        preset=document["schedule"]["preset"] if "schedule" in document else None,
    )
