"""What no schema states of a valid request; Schemathesis loads it to complete those it means to be valid."""

import zlib
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import schemathesis
from schemathesis import Case, HookContext
from schemathesis.core.parameters import ParameterLocation

from stackmgr.errors import InvalidPagination
from stackmgr.stacks import cursor
from stackmgr.stacks.eip55 import eip55
from tests.support.examples import ADDRESSES

SPELLINGS = [(address, eip55(address)) for address in ADDRESSES]
SOME_TIME = datetime(2026, 1, 1, tzinfo=UTC)


@schemathesis.hook
def before_call(context: HookContext, case: Case, **kwargs: Any) -> None:
    """Correct what is meant to be valid, in place."""
    if not case.meta.is_negative_at(ParameterLocation.BODY) and isinstance(case.body, dict):
        _complete_body(case.body)
    if not case.meta.is_negative_at(ParameterLocation.QUERY) and "cursor" in (case.query or {}):
        case.query["cursor"] = _completed_cursor(case.query["cursor"])
    has_key = "Idempotency-Key" in (case.headers or {}) and not case.meta.is_negative_at(
        ParameterLocation.HEADER
    )
    # A fourth keep their key, for retries and conflicts.
    if has_key and zlib.crc32(repr(case.body).encode()) % 4:
        case.headers["Idempotency-Key"] = str(uuid4())


def _complete_body(body: dict[str, Any]) -> None:
    if "name" in body:
        name = body["name"].replace("\0", "")
        body["name"] = name if name.strip() else f"{name}N"
    if "allocation" in body:
        body["allocation"] = _completed_allocation(body["allocation"])


def _completed_allocation(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return as many items, with as much as there is left of the generated weights."""
    left, completed = 10000, []
    for number, item in enumerate(items):
        last = number == len(items) - 1
        weight = left if last else min(left, int(item["weight_bps"]))
        address = SPELLINGS[number][zlib.crc32(item["token_address"].encode()) % 2]
        completed.append({"token_address": address, "weight_bps": weight})
        left -= weight
    return completed


def _completed_cursor(text: str) -> str:
    try:
        cursor.decode(text)
    except InvalidPagination:
        number = zlib.crc32(text.encode())
        return cursor.encode(cursor.Position(SOME_TIME + timedelta(seconds=number), UUID(int=number)))
    return text
