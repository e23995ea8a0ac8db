"""Verification by Unkey, in the cloud or self-hosted, through version 2 of its API.

The outcome is in `data` of a 200.  Another status means that nothing was verified; 429 is the rate
limit of the root key's workspace.
"""

import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from time import time
from typing import Any, ClassVar, Self

from stackmgr.access.verifiers import Identity, checked_identity, printable_id
from stackmgr.access.verifiers.remote import Endpoint
from stackmgr.database.pool import Database
from stackmgr.database.session import Session
from stackmgr.errors import RateLimited, ServiceError, ServiceUnavailable, Unauthorized, VerificationError
from stackmgr.reasons import ReasonSlug
from stackmgr.settings import Secret, Settings

LONGEST_KEY = 512
UNKNOWN_IN_A_ROW = 20

_REJECTED = {
    "NOT_FOUND": ReasonSlug.KEY_UNKNOWN,
    "EXPIRED": ReasonSlug.KEY_EXPIRED,
    "DISABLED": ReasonSlug.KEY_DISABLED,
    "FORBIDDEN": ReasonSlug.KEY_FORBIDDEN,
    "INSUFFICIENT_PERMISSIONS": ReasonSlug.KEY_WITHOUT_PERMISSION,
}
_log = logging.getLogger("stackmgr")


def _seconds_to_reset(ratelimits: object) -> int | None:
    """Return the seconds until the exceeded limits are reset, or None if unknown.

    `reset` is by Unkey's clock.  If this host's differs, a limit's duration bounds the seconds.
    """
    now_ms = int(time() * 1000)
    waits = [
        max(1, min((each["reset"] - now_ms + 999) // 1000, each["duration"] // 1000))
        for each in (ratelimits if isinstance(ratelimits, list) else ())
        if isinstance(each, dict)
        and each.get("exceeded") is True
        and type(each.get("reset")) is type(each.get("duration")) is int
    ]
    return max(waits, default=None)


def _identity(data: dict[str, Any]) -> Identity:
    valid, code = data.get("valid"), data.get("code")
    if not isinstance(valid, bool) or not isinstance(code, str) or valid != (code == "VALID"):
        raise ServiceUnavailable(ReasonSlug.VERIFIER_RESPONSE_CONTRADICTORY)
    if code == "RATE_LIMITED":
        raise RateLimited(ReasonSlug.KEY_LIMITED, _seconds_to_reset(data.get("ratelimits")))
    if code == "USAGE_EXCEEDED":
        raise RateLimited(ReasonSlug.KEY_USAGE_EXCEEDED)
    if not valid:
        raise Unauthorized(_REJECTED.get(code, ReasonSlug.KEY_REFUSED))
    identity = data.get("identity")
    if not isinstance(identity, dict):
        raise Unauthorized(ReasonSlug.IDENTITY_MISSING)
    return checked_identity(identity.get("id"), identity.get("externalId"), data.get("keyId"))


class UnkeyVerifier:
    """Verifies each key by one call to Unkey.  No database connection is held meanwhile."""

    needs_connection: ClassVar = False

    def __init__(self, endpoint: Endpoint, root_key: Secret) -> None:
        self._endpoint = endpoint
        self._root_key = root_key
        self._unknown = 0  # keys in a row

    @classmethod
    def from_settings(cls, chosen: Settings, database: Database | None) -> Self:
        return cls(Endpoint(chosen.unkey_url, timeout=chosen.verify_timeout), chosen.unkey_root_key)

    def check(self) -> str | None:
        """Probe Unkey with an invented key and return what that reveals."""
        try:
            with suppress(Unauthorized):  # as it should be
                self.verify("stackmgr-check")
        except VerificationError as ex:
            return f"Unkey verifies no key now: {ex.reason}"
        return None

    def verify(
        self, key: str, session: Session | None = None, trace: Mapping[str, str] | None = None
    ) -> Identity:
        """Return the identity of *key*.  Raises Unauthorized, RateLimited or ServiceUnavailable.

        The error of a response has Unkey's ids of the key and of the request.
        """
        if len(key) > LONGEST_KEY:
            raise Unauthorized(ReasonSlug.KEY_TOO_LONG)
        response = self._endpoint.post(
            "/v2/keys.verifyKey",
            credential=self._root_key,
            media_type="application/json",
            body=json.dumps({"key": key}).encode("ascii"),
            trace=trace,
        )
        data, meta = response.get("data"), response.get("meta")
        is_unknown = isinstance(data, dict) and data.get("code") == "NOT_FOUND"
        self._unknown = self._unknown + 1 if is_unknown else 0
        if self._unknown == UNKNOWN_IN_A_ROW:
            _log.warning("Unkey found none of the last %d keys: check the root key", UNKNOWN_IN_A_ROW)
        if not isinstance(data, dict):
            raise ServiceUnavailable(ReasonSlug.VERIFIER_RESPONSE_WITHOUT_DATA)
        try:
            return _identity(data)
        except ServiceError as ex:
            ex.key_id = printable_id(data.get("keyId"))
            ex.verifier_request_id = printable_id(meta.get("requestId")) if isinstance(meta, dict) else None
            raise
