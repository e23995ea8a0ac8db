"""A verifier with a fixed outcome for every key, for outcomes that the real ones return rarely."""

from collections.abc import Mapping
from typing import ClassVar, Self

from stackmgr.access.verifiers import Identity
from stackmgr.database.pool import Database
from stackmgr.database.session import Session
from stackmgr.settings import Settings


class FixedVerifier:
    """Returns *outcome*, or raises it if it is an exception.  `calls` counts the calls."""

    needs_connection: ClassVar = False

    def __init__(self, outcome: Identity | Exception) -> None:
        self._outcome = outcome
        self.calls = 0

    @classmethod
    def from_settings(cls, chosen: Settings, database: Database | None) -> Self:
        raise NotImplementedError

    def check(self) -> str | None:
        return None

    def verify(self, key: str, session: Session, trace: Mapping[str, str] | None = None) -> Identity:
        self.calls += 1
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome
