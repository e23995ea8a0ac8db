"""What Schemathesis has to be told about a valid request that no schema can say.

Loaded by its command line, named in SCHEMATHESIS_HOOKS.  A request that is meant to be valid is mended where
the contract asks for more than its form: the weights total 10000, the tokens are listed and each is there
once, a name is not blank, a cursor is one that the service may have handed out.  Nothing is done to what is
meant to be invalid, and so every check can stay on.  Idempotency-Keys repeat themselves a lot: most are made
new ones, so that stacks are created, and the others stay for the retries and the conflicts.
"""

import zlib
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import schemathesis
from schemathesis import Case, HookContext
from schemathesis.core.parameters import ParameterLocation

from stackmgr import cursor
from stackmgr.eip55 import eip55
from stackmgr.errors import InvalidPagination
from tests.support.examples import ADDRESSES

SPELLINGS = [(address, eip55(address)) for address in ADDRESSES]
SOME_TIME = datetime(2026, 1, 1, tzinfo=UTC)


@schemathesis.hook
def before_call(context: HookContext, case: Case, **kwargs: Any) -> None:
    """Mend what is meant to be valid, in place."""
    if not case.meta.is_negative_at(ParameterLocation.BODY) and isinstance(case.body, dict):
        _mend_body(case.body)
    if not case.meta.is_negative_at(ParameterLocation.QUERY) and "cursor" in (case.query or {}):
        case.query["cursor"] = _mended_cursor(case.query["cursor"])
    key = (case.headers or {}).get("Idempotency-Key")
    if (
        key
        and not case.meta.is_negative_at(ParameterLocation.HEADER)
        and zlib.crc32(repr(case.body).encode()) % 4
    ):
        case.headers["Idempotency-Key"] = str(uuid4())


def _mend_body(body: dict[str, Any]) -> None:
    if "name" in body:
        name = body["name"].replace("\0", "")
        body["name"] = name if name.strip() else f"{name}N"
    if "allocation" in body:
        body["allocation"] = _mended_allocation(body["allocation"])


def _mended_allocation(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return as many items, with as much as there is left of the generated weights."""
    left, mended = 10000, []
    for number, item in enumerate(items):
        last = number == len(items) - 1
        weight = left if last else min(left, int(item["weight_bps"]))
        address = SPELLINGS[number][zlib.crc32(item["token_address"].encode()) % 2]
        mended.append({"token_address": address, "weight_bps": weight})
        left -= weight
    return mended


def _mended_cursor(text: str) -> str:
    try:
        cursor.decode(text)
    except InvalidPagination:
        number = zlib.crc32(text.encode())
        return cursor.encode(cursor.Position(SOME_TIME + timedelta(seconds=number), UUID(int=number)))
    return text
