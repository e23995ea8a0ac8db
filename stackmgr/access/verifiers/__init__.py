"""Verification of API keys: the protocol between the service and a verifier.

`verify` returns an Identity or raises Unauthorized (the key is invalid), RateLimited, or
ServiceUnavailable (verification failed, access is not granted).  It must not block the thread,
which serves the other requests of the worker: see `stackmgr.scheduler`.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, Self

from stackmgr.database.pool import Database
from stackmgr.database.session import Session
from stackmgr.errors import Unauthorized
from stackmgr.limits import CANONICAL_UUID, LONGEST_IDENTITY_ID
from stackmgr.reasons import ReasonSlug
from stackmgr.settings import Settings

_CANONICAL_UUID = re.compile(CANONICAL_UUID)


@dataclass(frozen=True, slots=True)
class Identity:
    """A verified identity.

    `external_id` is the manager's account, a canonical lowercase UUID; `identity_id` the verifier's
    id of the holder.  `manager_id` is set if the same statement has read that the pair is bound to
    it. `key_id` is the verifier's id of the key; each revision records it.  `key_digest` is set if
    a statement can verify the key, which calls `record_use` if this hour's use is not recorded.
    """

    identity_id: str
    external_id: str
    manager_id: str | None = None
    key_id: str | None = None
    key_digest: bytes | None = None
    record_use: Callable[[], None] | None = field(default=None, compare=False)

    def parameters(self) -> dict[str, object]:
        """Return the parameters of a statement that are those of the caller."""
        return {
            "manager_id": self.manager_id,
            "external_id": self.external_id,
            "identity_id": self.identity_id,
            "key_id": self.key_id,
            "key_digest": self.key_digest,
        }


class Verifier(Protocol):
    """The interface of a verifier.

    `needs_connection`: whether `verify` runs statements, so a request begins with a connection.
    """

    needs_connection: ClassVar[bool]

    @classmethod
    def from_settings(cls, chosen: Settings, database: Database | None) -> Self:
        """Return the verifier of the settings; without a *database* it records nothing."""

    def verify(self, key: str, session: Session, trace: Mapping[str, str] | None = None) -> Identity:
        """Return the identity of *key*.  Raises Unauthorized, RateLimited or ServiceUnavailable.

        *session* is that of the request: it has a connection once a statement has run.  *trace* has
        the header fields of the W3C Trace Context, for a call of another service.
        """

    def check(self) -> str | None:
        """Return why no key can be verified now, if a call without a session shows it."""


def printable_id(value: object) -> str | None:
    """Return *value* if it is an id: short enough for the index, printable on one line."""
    is_id = isinstance(value, str) and 1 <= len(value) <= LONGEST_IDENTITY_ID and value.isprintable()
    return str(value) if is_id else None


def checked_identity(identity_id: object, external_id: object, key_id: object = None) -> Identity:
    """Return the identity, or raise Unauthorized if a field is missing or not canonical.

    A key's id that is not printable, or over 255 characters, is omitted: only operators see it.
    """
    if (identity := printable_id(identity_id)) is None:
        raise Unauthorized(ReasonSlug.IDENTITY_ID_MISSING)
    if not isinstance(external_id, str) or not _CANONICAL_UUID.fullmatch(external_id):
        raise Unauthorized(ReasonSlug.EXTERNAL_ID_NOT_CANONICAL)
    return Identity(identity_id=identity, external_id=external_id, key_id=printable_id(key_id))
