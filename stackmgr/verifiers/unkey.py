"""Keys verified by Unkey, its cloud or a self-hosted one, through the second version of its API.

Unkey answers every verification with HTTP 200 and says the outcome in `data`.  Another status means that
nothing was verified, but for 429: there Unkey limits the workspace of our root key.
"""

import json
from typing import Any

from stackmgr.database.session import Session
from stackmgr.errors import RateLimited, ServiceUnavailable, Unauthorized
from stackmgr.settings import Secret
from stackmgr.verifiers import Identity, checked_identity
from stackmgr.verifiers.remote import Endpoint

LONGEST_KEY = 512
_PATH = "/v2/keys.verifyKey"
_LIMITED = ("RATE_LIMITED", "USAGE_EXCEEDED")


def read_verification(document: dict[str, Any]) -> Identity:
    """Return whom the answer *document* identifies.

    Raises Unauthorized or RateLimited as it says, and ServiceUnavailable where it says nothing or
    contradicts itself.
    """
    data = document.get("data")
    if not isinstance(data, dict):
        raise ServiceUnavailable("verifier_answer_without_data")
    valid, code = data.get("valid"), data.get("code")
    if not isinstance(valid, bool) or not isinstance(code, str) or valid != (code == "VALID"):
        raise ServiceUnavailable("verifier_answer_contradictory")
    if code in _LIMITED:
        raise RateLimited("key_limited")
    if not valid:
        raise Unauthorized("key_refused")
    identity = data.get("identity")
    if not isinstance(identity, dict):
        raise Unauthorized("identity_missing")
    return checked_identity(identity.get("id"), identity.get("externalId"))


class UnkeyVerifier:
    """Verifies each key by one call to Unkey; nothing is cached, and the database is not used."""

    def __init__(self, endpoint: Endpoint, root_key: Secret) -> None:
        self._endpoint = endpoint
        self._root_key = root_key

    def verify(self, key: str, session: Session) -> Identity:
        """Return whom *key* identifies.  Raises Unauthorized, RateLimited or ServiceUnavailable."""
        if len(key) > LONGEST_KEY:
            raise Unauthorized("key_too_long")
        return read_verification(
            self._endpoint.post(
                _PATH,
                credential=self._root_key,
                media_type="application/json",
                body=json.dumps({"key": key}).encode("ascii"),
            )
        )
