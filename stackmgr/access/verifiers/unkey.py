"""Verification by Unkey, in the cloud or self-hosted, through version 2 of its API.

Every verification returns HTTP 200 with the outcome in `data`.  Another status means that nothing was
verified; 429 is the rate limit of the root key's workspace.
"""

import json
from collections.abc import Mapping
from typing import Any, Self

from stackmgr.access.verifiers import Identity, checked_identity
from stackmgr.access.verifiers.remote import Endpoint
from stackmgr.database.pool import Database
from stackmgr.database.session import Session
from stackmgr.errors import RateLimited, ServiceUnavailable, Unauthorized
from stackmgr.reasons import ReasonSlug
from stackmgr.settings import Secret, Settings

LONGEST_KEY = 512
_PATH = "/v2/keys.verifyKey"
_LIMITED = ("RATE_LIMITED", "USAGE_EXCEEDED")


def read_verification(document: dict[str, Any]) -> Identity:
    """Return the identity in the response *document*.

    Raises Unauthorized or RateLimited for those outcomes, ServiceUnavailable if the outcome is missing or
    contradictory.
    """
    data = document.get("data")
    if not isinstance(data, dict):
        raise ServiceUnavailable(ReasonSlug.VERIFIER_RESPONSE_WITHOUT_DATA)
    valid, code = data.get("valid"), data.get("code")
    if not isinstance(valid, bool) or not isinstance(code, str) or valid != (code == "VALID"):
        raise ServiceUnavailable(ReasonSlug.VERIFIER_RESPONSE_CONTRADICTORY)
    if code in _LIMITED:
        raise RateLimited(ReasonSlug.KEY_LIMITED)
    if not valid:
        raise Unauthorized(ReasonSlug.KEY_REFUSED)
    identity = data.get("identity")
    if not isinstance(identity, dict):
        raise Unauthorized(ReasonSlug.IDENTITY_MISSING)
    return checked_identity(identity.get("id"), identity.get("externalId"), data.get("keyId"))


class UnkeyVerifier:
    """Verifies each key by one call to Unkey.  No database connection is held meanwhile."""

    def __init__(self, endpoint: Endpoint, root_key: Secret) -> None:
        self._endpoint = endpoint
        self._root_key = root_key

    @classmethod
    def from_settings(cls, chosen: Settings, database: Database | None) -> Self:
        """Return the verifier; it records nothing in the *database*."""
        return cls(Endpoint(chosen.unkey_url, timeout=chosen.verify_timeout), chosen.unkey_root_key)

    def verify(self, key: str, session: Session, trace: Mapping[str, str] | None = None) -> Identity:
        """Return the identity of *key*.  Raises Unauthorized, RateLimited or ServiceUnavailable."""
        if len(key) > LONGEST_KEY:
            raise Unauthorized(ReasonSlug.KEY_TOO_LONG)
        response = self._endpoint.post(
            _PATH,
            credential=self._root_key,
            media_type="application/json",
            body=json.dumps({"key": key}).encode("ascii"),
            trace=trace,
        )
        return read_verification(response)
