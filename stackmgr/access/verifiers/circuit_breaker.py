"""A circuit breaker: requests do not wait for a verifier that has stopped responding.

After a few consecutive failures the circuit is open: calls fail at once.  At short intervals one
call is a probe, with a short timeout.  Now and then a probe has the full timeout, to find a slow
verifier alive; short probes continue, so a hanging probe does not delay recovery.  Any response,
also a rejection, closes the circuit.  Each process has a circuit of its own.
"""

import logging
import math
import threading
import time
from dataclasses import dataclass

from stackmgr.errors import CircuitOpen
from stackmgr.reasons import ReasonSlug

FAILURES_TO_OPEN = 3
PROBE_INTERVAL = 0.4  # seconds; also the timeout of a short probe

_log = logging.getLogger("stackmgr")


@dataclass(frozen=True, slots=True, eq=False)
class Permit:
    """Permission for one call of at most *seconds*."""

    seconds: float
    started_at: float
    is_full_probe: bool = False


class CircuitBreaker:
    """Decides whether a call may be made; *timeout* is an ordinary call's, in seconds."""

    def __init__(self, timeout: float) -> None:
        self.is_open = False
        self._timeout = timeout
        self._lock = threading.Lock()
        self._calls: set[Permit] = set()
        self._failures = 0
        self._responded_at = -math.inf
        self._next_probe_at = 0.0
        self._next_full_probe_at = 0.0

    def acquire(self) -> Permit:
        """Return a permit, which must be released.  Raises CircuitOpen."""
        with self._lock:
            now = time.monotonic()
            permit = self._probe(now) if self.is_open else Permit(self._timeout, now)
            self._calls.add(permit)
            return permit

    def _probe(self, now: float) -> Permit:
        if now < self._next_probe_at:
            raise CircuitOpen(ReasonSlug.VERIFIER_CIRCUIT_OPEN)
        self._next_probe_at = now + PROBE_INTERVAL
        if now < self._next_full_probe_at:
            return Permit(min(self._timeout, PROBE_INTERVAL), now)
        self._next_full_probe_at = math.inf  # until this one ends
        return Permit(self._timeout, now, is_full_probe=True)

    def release(self, permit: Permit, *, responded: bool) -> None:
        """Record whether the call was responded to, in whatever way."""
        with self._lock:
            was_open = self.is_open
            now = time.monotonic()
            self._calls.discard(permit)
            if permit.is_full_probe:
                self._next_full_probe_at = now + self._timeout
            if responded:
                self.is_open, self._failures, self._responded_at = False, 0, now
            elif permit.started_at >= self._responded_at:  # an older call says nothing about now
                self._fail(now)
            is_open = self.is_open
        if is_open and not was_open:
            _log.warning("The verifier does not respond: requests return 503 at once until it does")
        elif was_open and not is_open:
            _log.warning("The verifier responds again")

    def _fail(self, now: float) -> None:
        self._failures += 1
        # Calls that hang as well count already: until they have ended, others would join them.
        latest = now - self._timeout / 2
        hanging = sum(self._responded_at <= call.started_at <= latest for call in self._calls)
        if not self.is_open and self._failures + hanging >= FAILURES_TO_OPEN:
            self.is_open = True
            self._next_probe_at = now + PROBE_INTERVAL
            self._next_full_probe_at = now + self._timeout
