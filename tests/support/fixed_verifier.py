"""A verifier with a fixed outcome for every key, for outcomes that the real ones return rarely."""

from collections.abc import Mapping

from stackmgr.access.verifiers import Identity
from stackmgr.database.session import Session


class FixedVerifier:
    """Returns *outcome*, or raises it if it is an exception."""

    def __init__(self, outcome: Identity | Exception) -> None:
        self._outcome = outcome

    def check(self) -> str | None:
        return None

    def verify(self, key: str, session: Session, trace: Mapping[str, str] | None = None) -> Identity:
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome
