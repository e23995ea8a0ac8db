"""Positive verifications, kept for a few seconds so that the same key is not verified again in between.

Nothing but a complete identity is kept: no rejection, rate limit or failure.  A key revoked at the verifier
remains valid for as long.  Keys are kept as digests, at most MAX_IDENTITIES of them.
"""

import hashlib
import threading
import time

from stackmgr.access.verifiers import Identity

MAX_IDENTITIES = 10_000


class RecentIdentities:
    """Identities verified within the last *seconds*.  Thread-safe; with 0 seconds it keeps none."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._found: dict[bytes, tuple[float, Identity]] = {}

    def get(self, key: str) -> Identity | None:
        """Return the identity of *key* if it was verified recently."""
        if not self._seconds:
            return None
        expires_at, identity = self._found.get(_digest(key), (0.0, None))
        return identity if time.monotonic() < expires_at else None

    def add(self, key: str, identity: Identity, asked_at: float) -> None:
        """Keep the *identity* whose verification began at *asked_at* on the monotonic clock."""
        if not self._seconds:
            return
        digest = _digest(key)
        with self._lock:
            self._found.pop(digest, None)  # so that the order is that of expiry
            while len(self._found) >= MAX_IDENTITIES:
                del self._found[next(iter(self._found))]
            self._found[digest] = (asked_at + self._seconds, identity)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
