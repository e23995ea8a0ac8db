"""Encode and decode list cursors.

A cursor is `1` (the version) and 32 characters of URL-safe base64: 8 bytes of microseconds since
1970 and the 16 bytes of a stack id, without padding, so each cursor encodes one position.  It
grants no access: statements filter by the authenticated manager.
"""

import base64
import re
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from stackmgr.errors import InvalidPagination
from stackmgr.reasons import ReasonSlug

_FORM = re.compile(r"1[A-Za-z0-9_-]{32}")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Position(NamedTuple):
    """The end of a page: creation time and id of its last stack."""

    created_at: datetime
    stack_id: UUID


START = Position(datetime.max.replace(tzinfo=UTC), UUID(int=(1 << 128) - 1))
_LAST_MICROSECOND = (START.created_at - _EPOCH) // _MICROSECOND


def encode(position: Position) -> str:
    microseconds = (position.created_at - _EPOCH) // _MICROSECOND
    packed = microseconds.to_bytes(8, "big") + position.stack_id.bytes
    return "1" + base64.urlsafe_b64encode(packed).decode("ascii")


def decode(cursor: str) -> Position:
    """Return the position that *cursor* encodes.  Raises InvalidPagination."""
    if not _FORM.fullmatch(cursor):
        raise InvalidPagination(ReasonSlug.CURSOR_FORM)
    packed = base64.urlsafe_b64decode(cursor[1:])
    microseconds = int.from_bytes(packed[:8], "big")
    if microseconds > _LAST_MICROSECOND:
        raise InvalidPagination(ReasonSlug.CURSOR_TIME)
    return Position(_EPOCH + microseconds * _MICROSECOND, UUID(bytes=packed[8:]))
