"""The rules of a request body, written a second time and in another way than the service does.

A second opinion: no schema, no generated validator, one walk over the members in the order they came.
"""

import json
from typing import Any

from stackmgr.stacks.eip55 import eip55
from tests.contract.generated.strategies import Document, normal
from tests.support.examples import ADDRESSES, PRESETS

FIELDS = {"name", "allocation", "schedule"}
LOWERCASE = {spelling: address for address in ADDRESSES for spelling in (address, eip55(address))}


class Rejected(Exception):
    """The body breaks a rule."""


class Members(list[tuple[str, Any]]):
    """An object of JSON as it was written, with every member that stood in it."""


def read(body: bytes, *, update: bool = False) -> Document:
    """Return the configuration in *body*, in normal form.  Raises Rejected."""
    members = _object(_parsed(body))
    _require(members.keys() <= FIELDS and (bool(members) if update else members.keys() == FIELDS))
    judged = {"name": _name, "allocation": _allocation, "schedule": _schedule}
    return normal({field: judged[field](value) for field, value in members.items()})


def _require(kept: bool) -> None:
    if not kept:
        raise Rejected


def _never(_: str) -> None:
    raise Rejected


def _parsed(body: bytes) -> Any:
    try:
        # A number with a point or an exponent becomes a text that is no address, name or preset either.
        return json.loads(
            body.decode("utf-8"),
            object_pairs_hook=Members,
            parse_float=lambda text: [text],
            parse_constant=_never,
        )
    except (ValueError, RecursionError) as ex:
        raise Rejected from ex


def _object(value: Any) -> Document:
    _require(isinstance(value, Members))
    members = dict(value)
    _require(len(members) == len(value))
    return members


def _name(value: Any) -> str:
    _require(isinstance(value, str) and value.strip() != "")
    _require(not any(character == "\0" or "\ud800" <= character <= "\udfff" for character in value))
    return value


def _schedule(value: Any) -> Document:
    members = _object(value)
    _require(members.keys() == {"preset"})
    _require(isinstance(members["preset"], str) and members["preset"] in PRESETS)
    return members


def _allocation(value: Any) -> list[Document]:
    _require(isinstance(value, list) and not isinstance(value, Members) and 1 <= len(value) <= 30)
    items = [_item(item) for item in value]
    _require(len({item["token_address"] for item in items}) == len(items))
    _require(sum(item["weight_bps"] for item in items) == 10000)
    return items


def _item(value: Any) -> Document:
    members = _object(value)
    _require(members.keys() == {"token_address", "weight_bps"})
    address, weight = members["token_address"], members["weight_bps"]
    _require(isinstance(address, str) and address in LOWERCASE)
    _require(type(weight) is int and 0 <= weight <= 10000)
    return {"token_address": LOWERCASE[address], "weight_bps": weight}
