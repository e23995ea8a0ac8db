"""A circuit breaker: requests do not wait for a verifier that has stopped responding.

Three failures of one key, without a response for it, open the circuit of this key: its calls fail
at once.  Failures of three keys, without a response for any, open the circuit of all keys; once
there are keys with a response, no others count, because a client may make up another key each time.

At short intervals one call of an open circuit is a probe, with a short timeout.  Now and then a
probe has the full timeout, to find a slow verifier alive; short probes continue, so a hanging probe
does not delay recovery.  Any response, also a rejection, closes both circuits.

A key for which the verifier always fails must not be the only one that probes for all: keys that
have not failed have probes of their own, and after a key's probe another key is preferred.  Each
process has circuits of its own.
"""

import logging
import math
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from stackmgr.errors import CircuitOpen
from stackmgr.reasons import ReasonSlug

FAILURES_TO_OPEN = 3
PROBE_INTERVAL = 0.4  # seconds; also the timeout of a short probe
_OTHERS_INTERVAL = 0.05  # of keys that have not failed: most of them are good, if some fail
MOST_KEYS = 1_000  # that are failing, and as many with a response; the oldest of more is forgotten

_log = logging.getLogger("stackmgr")
_Value = TypeVar("_Value")


def _put(keys: dict[int, _Value], key: int, value: _Value) -> _Value:
    """Add a key at the end, if there are too many in place of the first; return *value*."""
    if len(keys) >= MOST_KEYS:
        del keys[next(iter(keys))]
    keys[key] = value
    return value


@dataclass(slots=True, eq=False)
class _Circuit:
    """The circuit of one key, which counts calls that *failed*, or of all keys, which counts keys."""

    reason: ReasonSlug
    failed: set[object] = field(default_factory=set)
    # While it is open: for keys that have not failed, and for those that have.
    next_probe_at: list[float] = field(default_factory=list)
    next_full_probe_at: float = 0.0
    last_key: int | None = None  # that has probed for all

    @property
    def is_open(self) -> bool:
        return len(self.failed) >= FAILURES_TO_OPEN

    def fail(self, failed: Iterable[object], now: float, timeout: float) -> None:
        if not self.is_open:
            self.failed.update(failed)
            self.next_probe_at = [now, now + PROBE_INTERVAL]
            self.next_full_probe_at = now + timeout


@dataclass(frozen=True, slots=True, eq=False)
class Permit:
    """Permission for one call of at most *seconds*; a probe is that of a *circuit*."""

    key: int
    seconds: float
    started_at: float
    circuit: _Circuit | None = None
    is_full_probe: bool = False


class CircuitBreaker:
    """Decides whether a call may be made; *timeout* is an ordinary call's, in seconds."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._lock = threading.Lock()
        # Without those that began before a response for their key, or before the verifier's recovery.
        self._calls: set[Permit] = set()
        self._all = _Circuit(ReasonSlug.VERIFIER_CIRCUIT_OPEN)
        self._of_keys: dict[int, _Circuit] = {}  # of each key whose last call has failed
        self._with_response: dict[int, None] = {}  # keys, the latest last
        self._responded_at = -math.inf

    def acquire(self, key: int) -> Permit:
        """Return a permit for a call with *key*, which must be released.  Raises CircuitOpen."""
        with self._lock:
            now = time.monotonic()
            circuit = self._all if self._all.is_open else self._of_keys.get(key, self._all)
            permit = self._probe(circuit, key, now) if circuit.is_open else Permit(key, self._timeout, now)
            self._calls.add(permit)
            return permit

    def _probe(self, circuit: _Circuit, key: int, now: float) -> Permit:
        has_failed = key in self._of_keys
        pause = PROBE_INTERVAL if key == circuit.last_key else 0.0
        if now < circuit.next_probe_at[has_failed] + pause:
            raise CircuitOpen(circuit.reason)
        circuit.next_probe_at[has_failed] = now + (PROBE_INTERVAL if has_failed else _OTHERS_INTERVAL)
        circuit.last_key = key if circuit is self._all else None
        if now < circuit.next_full_probe_at:
            return Permit(key, min(self._timeout, PROBE_INTERVAL), now, circuit)
        circuit.next_full_probe_at = math.inf  # until this one ends
        return Permit(key, self._timeout, now, circuit, is_full_probe=True)

    def release(self, permit: Permit, *, responded: bool) -> None:
        """Record whether the call was responded to, in whatever way."""
        with self._lock:
            was_open, now = self._all.is_open, time.monotonic()
            if permit.circuit is not None and permit.is_full_probe:
                permit.circuit.next_full_probe_at = now + self._timeout
            if responded:
                self._of_keys.pop(permit.key, None)
                self._with_response.pop(permit.key, None)
                _put(self._with_response, permit.key, None)
                self._calls = {call for call in self._calls if call.key != permit.key and not was_open}
                self._all, self._responded_at = _Circuit(ReasonSlug.VERIFIER_CIRCUIT_OPEN), now
            else:
                self._fail(permit, now)
            is_open = self._all.is_open
        if is_open and not was_open:
            _log.warning("The verifier does not respond: requests return 503 at once until it does")
        elif was_open and not is_open:
            _log.warning("The verifier responds again")

    def _fail(self, permit: Permit, now: float) -> None:
        # Calls that hang as well count already: until they have ended, others would join them.
        hanging = [call for call in self._calls if call.started_at <= now - self._timeout / 2]
        if permit in self._calls:
            self._calls.remove(permit)
            if (own := self._of_keys.get(permit.key)) is None:
                own = _put(self._of_keys, permit.key, _Circuit(ReasonSlug.VERIFIER_KEY_CIRCUIT_OPEN))
            if permit.circuit is not self._all:
                calls = [call for call in hanging if call.key == permit.key]
                own.fail([permit, *calls], now, self._timeout)
        # A call older than a response says nothing about now, a probe of a key nothing about others.
        calls = [each for each in [permit, *hanging] if each.circuit is None]
        keys = {each.key for each in calls if each.started_at >= self._responded_at}
        self._all.fail(keys & (self._with_response.keys() or keys), now, self._timeout)
