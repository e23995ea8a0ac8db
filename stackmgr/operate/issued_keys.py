"""The operator's statements on the keys of the database verifier."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any, NamedTuple
from uuid import uuid4

from stackmgr.access.api_keys import digest, generate, identity_of
from stackmgr.database import statements
from stackmgr.database.session import Session
from stackmgr.operate.connection import Operator

_INSERT = statements.load("api_key_insert")
_LIST = statements.load("api_key_list")
_REVOKE = statements.load("api_key_revoke")
_ROTATE = statements.load("api_key_rotate")


class Quota(NamedTuple):
    """At most `limit` requests in any span of `seconds`."""

    limit: int
    seconds: int


class IssuedKey(NamedTuple):
    """A new key, whose text is not stored, and its ids."""

    key: str
    key_id: str
    expires_at: datetime | None
    predecessor_expires_at: datetime | None = None


def create(
    operator: Operator | Session,
    external_id: str,
    *,
    label: str = "",
    expires_at: datetime | None = None,
    quota: Quota | None = None,
) -> IssuedKey:
    """Save a new key for a manager and return it."""
    issued = IssuedKey(generate(), str(uuid4()), expires_at)
    operator.rows(
        _INSERT,
        {
            "key_digest": digest(issued.key),
            "key_id": issued.key_id,
            "external_id": external_id,
            "identity_id": identity_of(external_id),
            "label": label,
            "last_four": issued.key[-4:],
            "expires_at": expires_at,
            "quota_id": quota and str(uuid4()),
            "quota_limit": quota and quota.limit,
            "quota_seconds": quota and quota.seconds,
        },
    )
    return issued


def list_all(operator: Operator, external_id: str | None = None) -> Iterator[Any]:
    """Yield every key ever issued, or those of one manager, oldest first."""
    return operator.iterate(_LIST, {"external_id": external_id, "key_id": None})


def find(operator: Operator, key_id: str) -> Any:
    """Return what is stored of one key but its digest, or None when there is no such key."""
    return next(iter(operator.rows(_LIST, {"external_id": None, "key_id": key_id})), None)


def revoke(operator: Operator | Session, key_id: str) -> datetime | None:
    """Revoke a key and return its time of revocation, or None when there is no such key."""
    rows = operator.rows(_REVOKE, {"key_id": key_id})
    return rows[0][1] if rows else None


def rotate(
    operator: Operator | Session, key_id: str, *, overlap_seconds: int = 0, expires_at: datetime | None = None
) -> IssuedKey | None:
    """Issue the successor of a key and let the key itself expire after the overlap.

    The successor has the key's label and quota, and its expiry unless *expires_at* says another.
    Returns None when there is no such key, or it is revoked, expired or rotated already.
    """
    key = generate()
    rows = operator.rows(
        _ROTATE,
        {
            "key_id": key_id,
            "overlap_seconds": overlap_seconds,
            "successor_digest": digest(key),
            "successor_id": str(uuid4()),
            "last_four": key[-4:],
            "expires_at": expires_at,
        },
    )
    return IssuedKey(key, *rows[0]) if rows else None
