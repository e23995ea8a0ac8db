"""The default verifier: keys issued by the operator, kept as SHA-256 in the service's own database."""

from stackmgr import api_keys
from stackmgr.database import statements
from stackmgr.database.session import Session
from stackmgr.errors import DatabaseError, RateLimited, ServiceUnavailable, Unauthorized
from stackmgr.verifiers import Identity
from stackmgr.verifiers.last_use import LastUse

_VERIFY = statements.load("api_key_verify")
_SPEND = statements.load("api_key_quota_spend")
_LOOK = statements.load("api_key_quota_look")

_REMEMBERED = 10_000


class DatabaseVerifier:
    """Verifies a key by one look-up of its digest; a key that cannot be one is refused without a look.

    A key with a quota costs a second statement, which takes one of the requests the quota allows; with
    *spends* false it only looks whether there is one.  *last_use*, if given, is told of keys in use.

    Which manager's a key was it remembers for one thing only: to guess whose stacks will be asked for, and to
    send that query along.  What comes of it is of use if the key proves to be valid, and that manager's.
    """

    def __init__(self, last_use: LastUse | None = None, *, spends: bool = True) -> None:
        self._last_use = last_use
        self._spends = spends
        self._managers: dict[bytes, str | None] = {}

    def verify(self, key: str, session: Session) -> Identity:
        """Return whom *key* identifies.  Raises Unauthorized, RateLimited or ServiceUnavailable."""
        if not api_keys.is_well_formed(key):
            raise Unauthorized("key_malformed")
        try:
            return self._look_up(api_keys.digest(key), session)
        except DatabaseError as ex:
            raise ServiceUnavailable("database") from ex

    def _look_up(self, key_digest: bytes, session: Session) -> Identity:
        guess = self._managers.get(key_digest)
        prefetch = session.prefetch_query(guess) if guess and session.prefetch_query else None
        row = session.row(_VERIFY, {"key_digest": key_digest}, prefetch)
        if row is None:
            raise Unauthorized("key_unknown")
        external_id, identity_id, manager_id, quota_id, quota_seconds, used_this_hour = row
        if manager_id != guess:
            self._remember(key_digest, manager_id)
        if self._last_use is not None and not used_this_hour:
            self._last_use.notice(key_digest)
        if quota_id is not None:
            self._require_quota(session, quota_id, quota_seconds)
        return Identity(identity_id=identity_id, external_id=external_id, manager_id=manager_id)

    def _remember(self, key_digest: bytes, manager_id: str | None) -> None:
        if len(self._managers) >= _REMEMBERED:
            self._managers.clear()
        self._managers[key_digest] = manager_id

    def _require_quota(self, session: Session, quota_id: str, seconds: int) -> None:
        quota = {"quota_id": quota_id, "quota_seconds": seconds}
        [(is_granted, wait)] = session.rows(_SPEND if self._spends else _LOOK, quota)
        if not is_granted:
            raise RateLimited("quota", wait)
