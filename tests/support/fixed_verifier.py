"""A verifier that gives every key the same answer: for what the shipped ones say only in rare moments."""

from stackmgr.database.session import Session
from stackmgr.verifiers import Identity


class FixedVerifier:
    """Returns *answer*, or raises it if it is an exception.  `calls` counts how often it was asked."""

    def __init__(self, answer: Identity | Exception) -> None:
        self._answer = answer
        self.calls = 0

    def verify(self, key: str, session: Session) -> Identity:
        self.calls += 1
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer
