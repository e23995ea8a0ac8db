"""The API key of one request: verified by the request's statement, or before it.

No row of such a statement: the key is invalid and nothing happened, and the verifier says why.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from time import monotonic
from typing import Any

from stackmgr.access import api_keys, managers
from stackmgr.access.verifiers import Identity, Verifier
from stackmgr.admission import Admission
from stackmgr.database.session import Operation, Session
from stackmgr.errors import BindingConflict, DatabaseError, ServiceError, ServiceUnavailable
from stackmgr.reasons import ReasonSlug


class State(Enum):
    """What is known of a key."""

    UNVERIFIED = auto()
    REMEMBERED = auto()  # by this worker; a statement verifies the key
    VERIFIED = auto()  # by the verifier; the manager is remembered, and a statement verifies the binding
    ACCEPTED = auto()  # with its binding
    FAILED = auto()  # rejected, or its verification failed


@dataclass(slots=True, repr=False)
class Credential:
    """The API key of one request.  `identity` is the caller's, with the manager, or None."""

    key: str
    session: Session
    verifier: Verifier
    admission: Admission
    trace: Mapping[str, str] | None = None
    state: State = State.UNVERIFIED
    identity: Identity | None = None
    verifier_seconds: float = 0.0  # for which the request waited for the verifier
    _error_code: str = ""
    _verified: Identity | None = None  # by the verifier

    @property
    def outcome(self) -> str | None:
        """`accepted`, the code of the verification's error, or None: neither accepted nor rejected."""
        if self.state is State.FAILED:
            return self._error_code
        return "accepted" if self.state in (State.VERIFIED, State.ACCEPTED) else None

    def begin(self) -> None:
        """Verify the key, unless this worker remembers it.

        Raises the verifier's errors, DatabaseError, BindingConflict.
        """
        known = self.admission.remembered
        # It may be of another key, which has the same hash.
        if known is not None and known.key_digest and known.key_digest == api_keys.digest(self.key):
            self.identity, self.state = known, State.REMEMBERED
        else:
            self._verify(known)

    def confirm(self) -> None:
        """Verify the key if no statement will.  Raises what `begin` does."""
        if self.state in (State.REMEMBERED, State.VERIFIED):
            self._verify_again()

    def rows(self, operation: Operation) -> list[Any]:
        """Run a statement for the caller and return its rows: one at least, if it verifies the key.

        Raises DatabaseError, and what `confirm` does.
        """
        if self.session.has_variants or "key_digest" not in operation.statement.parameters:
            return self._run(operation)
        for _ in range(2):
            if rows := self._run(operation):
                self._accept(self.identity)
                if not rows[0].used_this_hour and self.identity and self.identity.record_use:
                    self.identity.record_use()
                return rows
            self._verify_again()
        raise BindingConflict(ReasonSlug.MANAGER_BINDING)

    def _run(self, operation: Operation) -> list[Any]:
        statement, parameters, row, max_rows = operation
        given = {**parameters, **self.identity.parameters()} if self.identity else parameters
        try:
            return [row(*each) for each in self.session.rows(statement, given, max_rows=max_rows)]
        except DatabaseError as ex:
            # A statement that only reads, or that was not sent, has changed nothing.
            if self.outcome is None and (not statement.writes or ex.reason == ReasonSlug.NO_CONNECTION):
                self.state, self._error_code = State.FAILED, ServiceUnavailable.code
                raise ServiceUnavailable(ReasonSlug.DATABASE) from ex
            raise

    def _verify(self, known: Identity | None = None) -> None:
        began = monotonic()
        try:
            self._verified = self.verifier.verify(self.key, self.session, self.trace)
        except ServiceError as ex:
            self.state, self._error_code = State.FAILED, ex.code
            raise
        finally:
            self.verifier_seconds += monotonic() - began
        self._bind(self._verified, known)

    def _verify_again(self) -> None:
        """Find out why a statement has found no caller, without counting a verification twice."""
        self.identity = None
        if self._verified is None or self._verified.key_digest is not None:
            self._verify()
        else:
            self._bind(replace(self._verified, manager_id=None))

    def _bind(self, verified: Identity, known: Identity | None = None) -> None:
        self.state = State.VERIFIED
        if verified.manager_id is not None:
            self._accept(verified)
        elif known and (known.external_id, known.identity_id) == (verified.external_id, verified.identity_id):
            self.identity = replace(verified, manager_id=known.manager_id)
        else:
            self._accept(replace(verified, manager_id=managers.bind(self.session, verified)))

    def _accept(self, identity: Identity | None) -> None:
        self.identity, self.state = identity, State.ACCEPTED
        if identity is not None and identity.manager_id is not None:
            # The statements of a variant verify no key.
            self.admission.accept(identity.manager_id, None if self.session.has_variants else identity)
