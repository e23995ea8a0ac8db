"""The circuits before a verifier, as the docstring of circuit_breaker.py states them, for one thread."""

from dataclasses import dataclass, field
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

from stackmgr.access.verifiers import circuit_breaker, http_connection, remote

TIMEOUT, PROBE, OTHERS, MOST_KEYS = 3.0, 0.4, 0.05, 4  # seconds, and keys
# Of the clock, for a machine that has just started, and an old one; (now + 30) - now may be more than 30.
STARTS = (0.0, 1e7, next(now for now in (each / 7 for each in range(100, 10_000)) if (now + 30) - now > 30))
Keys = dict[int, Any]


@dataclass(eq=False)
class Circuit:
    reason: str
    failed: set[object] = field(default_factory=set)
    next: list[float] = field(default_factory=list)  # probe, of keys that have not failed and of others
    next_full: float = 0.0
    last_key: int | None = None

    @property
    def is_open(self) -> bool:
        return len(self.failed) >= 3

    def fail(self, failed: set[Any], now: float) -> None:
        if not self.is_open:
            self.failed |= failed
            self.next, self.next_full = [now, now + PROBE], now + TIMEOUT


@dataclass(eq=False)
class Call:
    key: int
    began: float
    probes: Circuit | None
    seconds: float = TIMEOUT
    permit: Any = None


def _put(keys: Keys, key: int, value: object) -> None:
    if len(keys) == MOST_KEYS:
        del keys[next(iter(keys))]
    keys[key] = value


class Circuits:
    def __init__(self) -> None:
        self.of_all, self.of_keys = Circuit("verifier_circuit_open"), Keys()
        self.with_response, self.responded_at = Keys(), -inf
        self.counting: list[Call] = []  # those that say something about now

    def begin(self, key: int, now: float) -> Call | str:
        circuit = self.of_all if self.of_all.is_open else self.of_keys.get(key, self.of_all)
        call = Call(key, now, circuit if circuit.is_open else None)
        if call.probes:
            has_failed = key in self.of_keys
            if now < circuit.next[has_failed] + (PROBE if key == circuit.last_key else 0.0):
                return str(circuit.reason)
            circuit.next[has_failed] = now + (PROBE if has_failed else OTHERS)
            circuit.last_key = key if circuit is self.of_all else None
            if now < circuit.next_full:
                call.seconds = PROBE
            else:
                circuit.next_full = inf
        self.counting.append(call)
        return call

    def end(self, call: Call, now: float, *, responded: bool) -> None:
        hanging = [each for each in self.counting if each.began <= now - TIMEOUT / 2]
        if call.probes and call.seconds == TIMEOUT:
            call.probes.next_full = now + TIMEOUT
        if responded:
            has_recovered = self.of_all.is_open
            self.counting = [each for each in self.counting if each.key != call.key and not has_recovered]
            self.of_keys.pop(call.key, None)
            self.with_response.pop(call.key, None)
            _put(self.with_response, call.key, None)
            self.of_all, self.responded_at = Circuit(self.of_all.reason), now
            return
        if call in self.counting:
            self.counting.remove(call)
            if call.key not in self.of_keys:
                _put(self.of_keys, call.key, Circuit("verifier_key_circuit_open"))
            if call.probes is not self.of_all:
                self.of_keys[call.key].fail({call, *(each for each in hanging if each.key == call.key)}, now)
        others = [each for each in [call, *hanging] if not each.probes]
        keys = {each.key for each in others if each.began >= self.responded_at}
        self.of_all.fail(keys & (self.with_response.keys() or keys), now)


def simulated_clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Return the verifier's clock, in seconds since the start of the machine; it remembers MOST_KEYS."""
    now = SimpleNamespace(seconds=0.0)
    monkeypatch.setattr(circuit_breaker, "MOST_KEYS", MOST_KEYS)
    monkeypatch.setattr(circuit_breaker, "time", SimpleNamespace(monotonic=lambda: now.seconds))
    for module in (remote, http_connection):
        monkeypatch.setattr(module, "monotonic", lambda: now.seconds)
    return now
