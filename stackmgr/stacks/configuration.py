"""The configuration of a stack: the rules a JSON Schema cannot express, the normalized form, its digest."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from stackmgr.errors import InvalidConfiguration
from stackmgr.limits import TOTAL_BPS
from stackmgr.reasons import ReasonSlug


@dataclass(frozen=True, slots=True)
class Configuration:
    """A complete configuration.  `allocation` is normalized JSON text, as stored and as returned."""

    name: str
    allocation: str
    preset: str

    def digest(self) -> bytes:
        """Return the SHA-256 that identifies the input of a creation.

        Receipts never expire, so this form must never change: the name and the preset as a JSON array in
        ASCII without spaces, a line feed, then the normalized allocation.
        """
        head = json.dumps([self.name, self.preset], separators=(",", ":"))
        return hashlib.sha256(f"{head}\n{self.allocation}".encode("ascii")).digest()


@dataclass(frozen=True, slots=True)
class Changes:
    """The fields of an update.  None stands for an omitted field."""

    name: str | None
    allocation: str | None
    preset: str | None


def name_violations(name: str) -> Iterator[ReasonSlug]:
    """Yield the slug of each rule that a non-empty *name* breaks."""
    if name.isspace():
        yield ReasonSlug.NAME_BLANK
    if "\0" in name:
        yield ReasonSlug.NAME_NUL
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        yield ReasonSlug.NAME_SURROGATE


def allocation_violations(
    items: list[dict[str, Any]], spellings: Mapping[str, str]
) -> Iterator[tuple[int | None, ReasonSlug]]:
    """Yield the slug of each rule that *items* break, with the item's index; None for the whole list."""
    seen = set()
    for index, item in enumerate(items):
        spelling = item["token_address"]
        address = spelling.lower()
        if spelling not in spellings:
            known = address in spellings
            yield index, ReasonSlug.TOKEN_CHECKSUM if known else ReasonSlug.TOKEN_NOT_WHITELISTED
        if address in seen:
            yield index, ReasonSlug.TOKEN_REPEATED
        seen.add(address)
    if sum(item["weight_bps"] for item in items) != TOTAL_BPS:
        yield None, ReasonSlug.WEIGHTS_TOTAL


def check_name(name: str) -> str:
    """Return *name* unchanged.  Raises InvalidConfiguration."""
    for reason in name_violations(name):
        raise InvalidConfiguration(reason)
    return name


def normalize_allocation(items: list[dict[str, Any]], spellings: Mapping[str, str]) -> str:
    """Return *items* as JSON text: lowercase addresses in ascending order.  Raises InvalidConfiguration."""
    for _, reason in allocation_violations(items, spellings):
        raise InvalidConfiguration(reason)
    weights = sorted((spellings[item["token_address"]], item["weight_bps"]) for item in items)
    normalized = (f'{{"token_address":"{token}","weight_bps":{bps}}}' for token, bps in weights)
    return f"[{','.join(normalized)}]"


def parse_create(document: dict[str, Any], spellings: Mapping[str, str]) -> Configuration:
    """Return the configuration of a create body that its schema accepts.  Raises InvalidConfiguration."""
    return Configuration(
        name=check_name(document["name"]),
        allocation=normalize_allocation(document["allocation"], spellings),
        preset=document["schedule"]["preset"],
    )


def parse_update(document: dict[str, Any], spellings: Mapping[str, str]) -> Changes:
    """Return the changes of an update body that its schema accepts.  Raises InvalidConfiguration."""
    return Changes(
        name=check_name(document["name"]) if "name" in document else None,
        allocation=(
            normalize_allocation(document["allocation"], spellings) if "allocation" in document else None
        ),
        preset=document["schedule"]["preset"] if "schedule" in document else None,
    )
