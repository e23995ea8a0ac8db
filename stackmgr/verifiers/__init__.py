"""Who is calling: the protocol between the service and whatever verifies its API keys.

A verifier answers `verify(key, session)` with an Identity or with one of three errors of
`stackmgr.errors`: Unauthorized (the key identifies nobody), RateLimited, or ServiceUnavailable (nothing
could be verified, so nothing is granted).  It verifies at most once and changes nothing.
"""

import re
from dataclasses import dataclass
from typing import Protocol

from stackmgr.database.session import Session
from stackmgr.errors import Unauthorized

_CANONICAL_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")

LONGEST_IDENTITY_ID = 255


@dataclass(frozen=True, slots=True)
class Identity:
    """A verified identity.

    `external_id` is the manager's account, a canonical lowercase UUID; `identity_id` is what the verifier
    itself calls the holder.  `manager_id` is set by a verifier that has already seen, in the same breath,
    that exactly this pair is bound to that manager.
    """

    identity_id: str
    external_id: str
    manager_id: str | None = None


class Verifier(Protocol):
    """What the service needs of a verifier."""

    def verify(self, key: str, session: Session) -> Identity:
        """Return whom *key* identifies.  Raises Unauthorized, RateLimited or ServiceUnavailable."""


def is_identity_id(text: str) -> bool:
    """Whether *text* can be an identity id: short enough to be indexed, and of one line of a log."""
    return 1 <= len(text) <= LONGEST_IDENTITY_ID and text.isprintable()


def checked_identity(identity_id: object, external_id: object) -> Identity:
    """Return the identity, or raise Unauthorized if a field is missing or not canonical."""
    if not isinstance(identity_id, str) or not is_identity_id(identity_id):
        raise Unauthorized("identity_id_missing")
    if not isinstance(external_id, str) or not _CANONICAL_UUID.fullmatch(external_id):
        raise Unauthorized("external_id_not_canonical")
    return Identity(identity_id=identity_id, external_id=external_id)
