"""The operator's statements on the keys of the database verifier."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from uuid import uuid4

from stackmgr.access.api_keys import digest, generate, identity_of
from stackmgr.database import statements
from stackmgr.operate.connection import Operator, Runs

_FIND = statements.load("api_key_find")
_INSERT = statements.load("api_key_insert")
_LIST = statements.load("api_key_list")
_REVOKE = statements.load("api_key_revoke")
_ROTATE = statements.load("api_key_rotate")


@dataclass(frozen=True, slots=True)
class Quota:
    """At most `limit` requests in any span of `seconds`."""

    limit: int
    seconds: int

    def __str__(self) -> str:
        return f"{self.limit}/{self.seconds}"


@dataclass(frozen=True, slots=True)
class IssuedKey:
    """A new key, whose text is not stored, and its ids."""

    key: str
    key_id: str
    expires_at: datetime | None
    predecessor_expires_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """The public data of a key.  `last_used_at` is the hour of its last use, not the moment."""

    key_id: str
    external_id: str
    label: str
    last_four: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    quota_limit: int | None
    quota_seconds: int | None
    successor_id: str | None
    state: str

    @property
    def quota(self) -> str | None:
        """The quota of the key, if it has one."""
        return None if self.quota_limit is None else f"{self.quota_limit}/{self.quota_seconds}"


def create(
    operator: Runs,
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


def issue(operator: Runs, external_id: str, *, label: str = "", expires_at: datetime | None = None) -> str:
    """Save a new key for a manager and return its text alone."""
    return create(operator, external_id, label=label, expires_at=expires_at).key


def list_all(operator: Operator, external_id: str | None = None) -> Iterator[KeyRecord]:
    """Yield every key ever issued, or those of one manager, oldest first."""
    return (KeyRecord(*row) for row in operator.iterate(_LIST, {"external_id": external_id}))


def find(operator: Runs, key_id: str) -> KeyRecord | None:
    """Return the public data of one key, or None when there is no such key."""
    rows = operator.rows(_FIND, {"key_id": key_id})
    return KeyRecord(*rows[0]) if rows else None


def revoke(operator: Runs, key_id: str) -> datetime | None:
    """Revoke a key and return its time of revocation, or None when there is no such key."""
    rows = operator.rows(_REVOKE, {"key_id": key_id})
    return rows[0][1] if rows else None


def rotate(
    operator: Runs, key_id: str, *, overlap_seconds: int = 0, expires_at: datetime | None = None
) -> IssuedKey | None:
    """Issue the successor of a key and let the key itself expire after the overlap.

    The successor has the key's label and quota, and its expiry unless *expires_at* says another.  Returns
    None when there is no such key, or it is revoked, expired or rotated already.
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
