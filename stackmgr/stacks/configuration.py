"""The configuration of a stack: rules beyond a JSON Schema, the normalized form, its digest."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from stackmgr.errors import InvalidConfiguration
from stackmgr.limits import TOTAL_BPS
from stackmgr.reasons import ReasonSlug


class Configuration(NamedTuple):
    """A complete configuration; `allocation` is normalized JSON text, as stored and returned."""

    name: str
    allocation: str
    preset: str

    def digest(self) -> bytes:
        """Return the SHA-256 that identifies the input of a create.

        Receipts never expire, so this form must never change: name and preset as a JSON array in
        ASCII without spaces, a line feed, then the normalized allocation.
        """
        head = f'[{json.dumps(self.name)},"{self.preset}"]'
        return hashlib.sha256(f"{head}\n{self.allocation}".encode("ascii")).digest()


def check_name(name: str) -> str:
    """Return a *name* that is not empty unchanged.  Raises InvalidConfiguration."""
    if name.isspace():
        raise InvalidConfiguration(ReasonSlug.NAME_BLANK)
    if "\0" in name:
        raise InvalidConfiguration(ReasonSlug.NAME_NUL)
    try:
        name.encode("utf-8")
    except UnicodeEncodeError as ex:
        raise InvalidConfiguration(ReasonSlug.NAME_SURROGATE) from ex
    return name


def normalize_allocation(items: list[dict[str, Any]], spellings: Mapping[str, str]) -> str:
    """Return *items* as JSON: lowercase addresses, ascending.  Raises InvalidConfiguration."""
    weights: dict[str, int] = {}
    for index, item in enumerate(items):
        spelling = item["token_address"]
        token = spellings.get(spelling)
        if token is None:
            is_known = spelling.lower() in spellings
            reason = ReasonSlug.TOKEN_CHECKSUM if is_known else ReasonSlug.TOKEN_NOT_WHITELISTED
            raise InvalidConfiguration(reason, f"allocation[{index}].token_address")
        if token in weights:
            raise InvalidConfiguration(ReasonSlug.TOKEN_REPEATED, f"allocation[{index}].token_address")
        weights[token] = item["weight_bps"]
    if (total := sum(weights.values())) != TOTAL_BPS:
        raise InvalidConfiguration(ReasonSlug.WEIGHTS_TOTAL, f"allocation: {total}")
    normalized = [
        f'{{"token_address":"{token}","weight_bps":{bps}}}' for token, bps in sorted(weights.items())
    ]
    return f"[{','.join(normalized)}]"


def parse(document: dict[str, Any], spellings: Mapping[str, str]) -> dict[str, str]:
    """Return the fields that a body has, which its schema accepts.  Raises InvalidConfiguration."""
    fields: dict[str, str] = {}
    if "name" in document:
        fields["name"] = check_name(document["name"])
    if "allocation" in document:
        fields["allocation"] = normalize_allocation(document["allocation"], spellings)
    if "schedule" in document:
        fields["preset"] = document["schedule"]["preset"]
    return fields
