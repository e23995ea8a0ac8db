"""The default verifier: keys issued by the operator, kept as SHA-256 in the service's database."""

import logging
import threading
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import ClassVar, Self

from stackmgr.access import api_keys
from stackmgr.access.verifiers import Identity
from stackmgr.database import statements
from stackmgr.database.pool import Database
from stackmgr.database.session import Session
from stackmgr.errors import DatabaseError, RateLimited, ServiceError, ServiceUnavailable, Unauthorized
from stackmgr.reasons import ReasonSlug
from stackmgr.settings import Settings
from stackmgr.threads import repeat

_VERIFY = statements.load("api_key_verify")
_CONSUME_QUOTA = statements.load("api_key_quota_consume")
_PEEK_QUOTA = statements.load("api_key_quota_peek")
_RECORD_USE = statements.load("api_key_use_record")

_log = logging.getLogger("stackmgr")

# By the state of a key that is known, but not valid.
_REASONS = {"revoked": ReasonSlug.KEY_REVOKED, "expired": ReasonSlug.KEY_EXPIRED}


class LastUse:
    """The last use of each key, to the hour, recorded outside of requests.  Thread-safe.

    If the current hour is not recorded yet, verification adds the key's digest to a set.  A thread
    writes the set every 30 seconds and at the end: at most once per key and hour.  A killed process
    loses up to 30 seconds of uses, until the keys are used again.
    """

    def __init__(self, database: Database, interval: float = 30.0) -> None:
        self._database = database
        self._interval = interval
        self._lock = threading.Lock()
        self._noticed: set[bytes] = set()
        self._has_thread = False

    def notice(self, key_digest: bytes) -> None:
        if key_digest in self._noticed and self._has_thread:
            return
        with self._lock:
            self._noticed.add(key_digest)
            if not self._has_thread:
                with suppress(RuntimeError):  # no more threads: the next use tries again
                    repeat(self.write, self._interval, "last-use")
                    self._has_thread = True

    def write(self) -> None:
        """Write the uses; those that cannot be written are kept for the next time."""
        with self._lock:
            noticed, self._noticed = self._noticed, set()
        try:
            for key_digest in tuple(noticed):
                self._database.session().row(_RECORD_USE, {"key_digest": key_digest})
                noticed.remove(key_digest)
        except DatabaseError as ex:
            _log.warning("The last use of %d keys could not be saved yet", len(noticed), exc_info=ex)
            with self._lock:
                self._noticed |= noticed


class DatabaseVerifier:
    """Verify a key by one look-up of its digest; reject a malformed key without one.

    A key with a quota costs a second statement, which consumes a request of the quota.  Without
    *consumes* it only checks whether one is left.  *last_use*, if given, records keys in use.
    """

    needs_connection: ClassVar = True

    def __init__(self, last_use: LastUse | None = None, *, consumes: bool = True) -> None:
        self._last_use = last_use
        self._consumes = consumes

    @classmethod
    def from_settings(cls, chosen: Settings, database: Database | None) -> Self:
        return cls(consumes=False) if database is None else cls(LastUse(database))

    def check(self) -> None:
        """Return None: the check of the database shows whether keys can be verified."""

    def verify(self, key: str, session: Session, trace: Mapping[str, str] | None = None) -> Identity:
        if not api_keys.is_well_formed(key):
            raise Unauthorized(ReasonSlug.KEY_MALFORMED)
        key_digest, key_id = api_keys.digest(key), None
        record_use = partial(self._last_use.notice, key_digest) if self._last_use else None
        try:
            row = session.row(_VERIFY, {"key_digest": key_digest}, max_rows=1)
            if row is None:
                raise Unauthorized(ReasonSlug.KEY_UNKNOWN)
            state, external_id, identity_id, key_id, manager_id, quota_id, quota_seconds, used_this_hour = row
            if state != "valid":
                raise Unauthorized(_REASONS[state])
            if record_use and not used_this_hour:
                record_use()
            if quota_id is not None:
                quota = {"quota_id": quota_id, "quota_seconds": quota_seconds}
                [(is_granted, wait)] = session.rows(_CONSUME_QUOTA if self._consumes else _PEEK_QUOTA, quota)
                if not is_granted:
                    raise RateLimited(ReasonSlug.QUOTA, wait)
        except DatabaseError as ex:
            raise ServiceUnavailable(ReasonSlug.DATABASE) from ex
        except ServiceError as ex:
            ex.key_id = key_id
            raise
        # A quota is used up by a statement of its own, before anything is written.
        digest = key_digest if quota_id is None else None
        return Identity(identity_id, external_id, manager_id, key_id, digest, record_use)
