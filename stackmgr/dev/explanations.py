"""Explanations of request bodies: the service's decision, with every reason the API must not return.

The service's own validation decides; its slug is always among the reasons, and the others are added to it.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from stackmgr.dev import schema_reasons
from stackmgr.dev.schema_reasons import Reason
from stackmgr.errors import InvalidBody, InvalidConfiguration, PayloadTooLarge, ServiceError
from stackmgr.http.requests import RequestSchema
from stackmgr.http.schemas import inline_references, read_schema
from stackmgr.limits import BODY_LIMIT_BYTES, LONGEST_KEY_BYTES, TOTAL_BPS
from stackmgr.reasons import ReasonSlug
from stackmgr.stacks import configuration
from stackmgr.stacks.configuration import Changes, Configuration
from stackmgr.stacks.whitelist import Whitelist

CREATE, UPDATE = "stack_create.json", "stack_update.json"

_FIELDS = ("name", "allocation", "schedule")
_NAME_MESSAGES = {
    "name_blank": "has no character other than whitespace",
    "name_nul": "contains U+0000",
    "name_surrogate": "contains half of a surrogate pair",
}


@dataclass(frozen=True)
class Explanation:
    """The service's decision on a body: an error with its reasons, or what was accepted."""

    error: ServiceError | None = None
    accepted: Configuration | Changes | None = None
    reasons: list[Reason] = field(default_factory=list)


@cache
def _schemas(name: str) -> tuple[RequestSchema, dict[str, Any]]:
    return RequestSchema(name), inline_references(read_schema(name))


def explain(body: bytes, schema: str, listed: Whitelist) -> Explanation:
    """Return the service's decision on *body*, validated as *schema*, CREATE or UPDATE."""
    if len(body) > BODY_LIMIT_BYTES:
        slug = ReasonSlug.CONTENT_LENGTH
        return Explanation(
            PayloadTooLarge(slug), reasons=[Reason((), slug, f"exceeds {BODY_LIMIT_BYTES} bytes")]
        )
    validator, keywords = _schemas(schema)
    parse = configuration.parse_create if schema == CREATE else configuration.parse_update
    try:
        return Explanation(accepted=parse(validator.parse(body), listed.spellings))
    except (InvalidBody, InvalidConfiguration) as ex:
        document, found = schema_reasons.syntax_and_schema(body, keywords)
        if isinstance(document, dict):
            found += _name_reasons(document.get("name"))
            found += _allocation_reasons(document.get("allocation"), keywords, listed)
        if ex.reason not in {reason.rule for reason in found}:
            found.append(Reason((), ex.reason, ex.message))
        return Explanation(ex, reasons=sorted(found, key=_order))


def _order(reason: Reason) -> tuple[int, float]:
    """Return the sort key: fields in the order of the specification, items before their list."""
    first, second = (*reason.path, None, None)[:2]
    position = _FIELDS.index(first) if first in _FIELDS else -1
    return position, second if isinstance(second, int) else float("inf")


def _name_reasons(name: Any) -> Iterator[Reason]:
    if isinstance(name, str) and name:
        for slug in configuration.name_violations(name):
            yield Reason(("name",), slug, _NAME_MESSAGES[slug])


def _allocation_reasons(allocation: Any, keywords: dict[str, Any], listed: Whitelist) -> Iterator[Reason]:
    """Yield what is wrong with tokens and weights, of those items that have both."""
    if not isinstance(allocation, list):
        return
    schema = keywords["properties"]["allocation"]["items"]
    indexes = [index for index, item in enumerate(allocation) if _is_item(item, schema)]
    items = [allocation[index] for index in indexes]
    for number, slug in configuration.allocation_violations(items, listed.spellings):
        if number is not None:
            place = ("allocation", indexes[number], "token_address")
            yield Reason(place, slug, _token_message(slug, allocation, indexes[: number + 1], listed))
        elif items and len(items) == len(allocation):
            yield Reason(("allocation",), slug, _total_message(sum(item["weight_bps"] for item in items)))


def _is_item(item: Any, schema: dict[str, Any]) -> bool:
    """Whether *item* has a well-formed address and weight, whatever else it has."""
    if not isinstance(item, dict) or any(
        isinstance(item.get(name), schema_reasons.Unreadable | None) for name in schema["required"]
    ):
        return False
    properties = schema["properties"]
    return not any(
        list(schema_reasons.schema_reasons(item[name], properties[name], (name,)))
        for name in schema["required"]
    )


def _token_message(slug: str, allocation: list[Any], indexes: list[int], listed: Whitelist) -> str:
    """Return what is wrong with the token at the last of *indexes*; the others are valid items before it."""
    address = allocation[indexes[-1]]["token_address"].lower()
    token = listed.tokens.get(address)
    if slug == "token_repeated":
        first = next(index for index in indexes if allocation[index]["token_address"].lower() == address)
        return f"repeats the token of allocation[{first}], {listed.symbol(address)}"
    if slug == "token_checksum" and token is not None:
        return f"breaks its EIP-55 checksum; {token.symbol} is {token.checksummed}"
    if address == listed.settlement.address:
        return f"is the settlement asset {listed.settlement.symbol}, which no stack may hold"
    return f"is not one of the {len(listed.tokens)} tokens: see 'stackmgr tokens list'"


def _total_message(total: int) -> str:
    off = f"{TOTAL_BPS - total} missing" if total < TOTAL_BPS else f"{total - TOTAL_BPS} too many"
    return f"weights total {total}, not {TOTAL_BPS} ({off})"


def header_value(argument: str) -> str:
    """Return what the service reads of a header field, given as a shell or an HTTP client sends it."""
    # A header field is a sequence of bytes without the spaces around it; the service reads it as Latin-1.
    return os.fsencode(argument).decode("latin-1").strip(" \t")


def key_reasons(argument: str) -> list[Reason]:
    """Return why an Idempotency-Key, given as a shell or an HTTP client sends it, does not fit."""
    key = header_value(argument)
    size = len(key.encode("utf-8"))
    place = ("Idempotency-Key",)
    if not key.strip():
        return [Reason(place, "idempotency_key_blank", "is missing or blank")]
    if any((ord(each) < 32 and each != "\t") or each == "\x7f" for each in key):
        return [Reason(place, "header", "contains a control character, which no header field may")]
    if size > LONGEST_KEY_BYTES:
        message = f"takes {size} bytes of the receipt index, which holds {LONGEST_KEY_BYTES}"
        return [Reason(place, "idempotency_key_too_long", message)]
    return []
