"""API keys: their form, and the operator's commands on those kept in the database.

A key is `stackmgr_`, 32 random characters of base 62 (190 bits) and 6 more that are the CRC-32 of the
random ones: secret scanners recognise it, and a mistyped key is rejected without a query.
"""

import hashlib
import re
import secrets
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import uuid4

from stackmgr.database import statements
from stackmgr.database.session import Session
from stackmgr.database.statements import Reads, Streams

PATTERN = r"stackmgr_[0-9A-Za-z]{38}"
_FORM = re.compile(PATTERN)
_PREFIX = "stackmgr_"
_RANDOM_LENGTH = 32
_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_PAIRS = [first + second for first in _ALPHABET for second in _ALPHABET]

_FIND = statements.load("api_key_find")
_INSERT = statements.load("api_key_insert")
_LIST = statements.load("api_key_list")
_REVOKE = statements.load("api_key_revoke")
_ROTATE = statements.load("api_key_rotate")


def _checksum(random_part: str) -> str:
    rest, last = divmod(zlib.crc32(random_part.encode("ascii")), 62**2)
    first, middle = divmod(rest, 62**2)
    return _PAIRS[first] + _PAIRS[middle] + _PAIRS[last]


def generate() -> str:
    """Return a new key."""
    random_part = "".join(secrets.choice(_ALPHABET) for _ in range(_RANDOM_LENGTH))
    return _PREFIX + random_part + _checksum(random_part)


def is_well_formed(key: str) -> bool:
    """Whether *key* has the form of a key and the checksum that belongs to it."""
    if not _FORM.fullmatch(key):
        return False
    random_part = key[len(_PREFIX) : len(_PREFIX) + _RANDOM_LENGTH]
    return key[len(_PREFIX) + _RANDOM_LENGTH :] == _checksum(random_part)


def digest(key: str) -> bytes:
    """Return what is stored of a key.  190 random bits need no slow hash."""
    return hashlib.sha256(key.encode("ascii")).digest()


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

    @property
    def quota(self) -> Quota | None:
        """The quota of the key, if it has one."""
        if self.quota_limit is None or self.quota_seconds is None:
            return None
        return Quota(self.quota_limit, self.quota_seconds)

    def is_expired(self) -> bool:
        """Whether the key has expired."""
        return self.expires_at is not None and self.expires_at <= datetime.now(UTC)


def identity_of(external_id: str) -> str:
    """Return the identity id that the database verifier gives to the holder of *external_id*."""
    return f"stackmgr:{external_id}"


def create(
    session: Session,
    external_id: str,
    *,
    label: str = "",
    expires_at: datetime | None = None,
    quota: Quota | None = None,
) -> IssuedKey:
    """Save a new key for a manager and return it."""
    issued = IssuedKey(generate(), str(uuid4()), expires_at)
    session.row(
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


def issue(
    session: Session,
    external_id: str,
    *,
    label: str = "",
    expires_at: datetime | None = None,
    quota: Quota | None = None,
) -> str:
    """Save a new key for a manager and return the key alone."""
    return create(session, external_id, label=label, expires_at=expires_at, quota=quota).key


def list_all(
    streams: Streams, external_id: str | None = None, *, first: str | None = None, limit: int | None = None
) -> Iterator[KeyRecord]:
    """Yield every key ever issued, or those of one manager, oldest first, from the key *first* on.

    At most *limit* of them; none if there is no key *first*.
    """
    parameters = {"external_id": external_id, "first": first, "row_limit": limit}
    return (KeyRecord(*row) for row in streams.iterate(_LIST, parameters))


def find(reads: Reads, key_id: str) -> KeyRecord | None:
    """Return the public data of one key, or None when there is no such key."""
    rows = reads.rows(_FIND, {"key_id": key_id})
    return KeyRecord(*rows[0]) if rows else None


def revoke(session: Session, key_id: str) -> datetime | None:
    """Revoke a key and return its time of revocation, or None when there is no such key."""
    row = session.row(_REVOKE, {"key_id": key_id})
    return None if row is None else row[1]


def rotate(
    session: Session, key_id: str, *, overlap_seconds: int = 0, expires_at: datetime | None = None
) -> IssuedKey | None:
    """Issue the successor of a key and let the key itself expire after the overlap.

    The successor has the key's label and quota, and its expiry unless *expires_at* says another.  Returns
    None when there is no such key, or it is revoked, expired or rotated already.
    """
    key, successor_id = generate(), str(uuid4())
    row = session.row(
        _ROTATE,
        {
            "key_id": key_id,
            "overlap_seconds": overlap_seconds,
            "successor_digest": digest(key),
            "successor_id": successor_id,
            "last_four": key[-4:],
            "expires_at": expires_at,
        },
    )
    return None if row is None else IssuedKey(key, *row)
