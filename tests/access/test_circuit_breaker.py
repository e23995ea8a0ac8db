"""The circuits before Unkey: a failing key costs no other one, and after an outage all are served again."""

import math
from heapq import heappop, heappush
from itertools import count, cycle

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_model

from stackmgr.access.verifiers.circuit_breaker import CircuitBreaker
from stackmgr.errors import CircuitOpen
from tests.access.circuits import OTHERS, PROBE, STARTS, TIMEOUT, Circuits, simulated_clock


@pytest.fixture
def clock(monkeypatch):
    return simulated_clock(monkeypatch)


class Calls(RuleBasedStateMachine):
    """Calls of a few keys, which end in any order."""

    @initialize(at=st.sampled_from(STARTS))
    def start(self, at):
        self.clock.seconds, self.under_way = at, []
        self.circuits, self.breaker = Circuits(), CircuitBreaker(TIMEOUT)

    @rule(key=st.integers(0, 5), number=st.sampled_from([1, 1, 3]), fails=st.booleans())
    def begin(self, key, number, *, fails):
        for _ in range(number):
            call = self.circuits.begin(key, self.clock.seconds)
            if isinstance(call, str):
                with pytest.raises(CircuitOpen, match=f"^{call}$"):
                    self.breaker.acquire(key)
            else:
                call.permit = self.breaker.acquire(key)
                assert (call.permit.seconds, bool(call.permit.circuit)) == (call.seconds, bool(call.probes))
                self.under_way.append(call)
                if fails:
                    self.end(-1, responded=False)

    @rule(place=st.integers(0, 1000), responded=st.sampled_from([False, False, False, True]))
    @precondition(lambda self: self.under_way)
    def end(self, place, responded):
        call = self.under_way.pop(place % len(self.under_way))
        self.circuits.end(call, self.clock.seconds, responded=responded)
        self.breaker.release(call.permit, responded=responded)

    @rule(seconds=st.sampled_from([OTHERS, PROBE / 2, PROBE, TIMEOUT / 2, TIMEOUT]))
    def let_pass(self, seconds):
        self.clock.seconds += seconds


def test_circuits_are_those_of_the_model(clock):
    Calls.clock = clock
    run_model(Calls, settings=settings(stateful_step_count=60))


# To which the model may come, or not: the timeout, what keys do, and whether the circuit of all opens.
CASES = {
    "one responds twice": (PROBE / 2, [("good", "01232"), ("bad", "013")], True),
    "probes of two keys hang": (TIMEOUT, [
        ("good", "012"), ("bad", "010101"), ("good", "3"), ("wait", TIMEOUT), ("begin", "01"),
        ("wait", TIMEOUT), ("bad", "2"),
    ], False),
    "one has begun before a response": (TIMEOUT, [
        ("good", "012"), ("begin", "3"), ("wait", PROBE), ("begin", "0"), ("wait", PROBE), ("respond", "3"),
        ("fail", "0"), ("bad", "12"),
    ], False),
    "one probes and fails": (TIMEOUT, [("bad", "000"), *[("wait", PROBE), ("bad", "0")] * 3], False),
}  # fmt: skip


@pytest.mark.parametrize(("timeout", "steps", "opens"), CASES.values(), ids=CASES)
def test_failures_that_count_open_the_circuit(clock, caplog, timeout, steps, opens):
    breaker, begun = CircuitBreaker(timeout), {}
    for what, given in steps:
        clock.seconds += given if what == "wait" else 0.0
        for key in given if what != "wait" else "":
            if what in ("good", "bad", "begin"):
                begun[key] = breaker.acquire(int(key))
            if what != "begin":
                breaker.release(begun.pop(key), responded=what in ("good", "respond"))
    permit = breaker.acquire(4)
    assert (bool(permit.circuit), permit.seconds) == (opens, timeout)
    breaker.release(permit, responded=False)
    assert len(caplog.messages) == opens


def simulate(breaker, clock, keys, per_second, seconds):
    """Return which calls were responded to, by key, and the most that were under way.

    Each of *keys* takes its turn.  Its value is the seconds of a response, or what it does: `fails`, `hangs`,
    or `varies` and fails: it is another key each time.
    """
    ended, ends, numbers, most = {key: [] for key in keys}, [], count(), 0
    turns, started = cycle(keys), clock.seconds
    for number in range(int(per_second * seconds)):
        at = started + number / per_second
        while ends and ends[0][0] <= at:
            clock.seconds, _, permit, key, responded = heappop(ends)
            breaker.release(permit, responded=responded)
            ended[key].append(responded)
        clock.seconds, key = at, next(turns)
        try:
            permit = breaker.acquire(hash((key, number)) if keys[key] == "varies" else hash(key))
        except CircuitOpen:
            ended[key].append(False)
            continue
        takes = {"fails": 0.005, "varies": 0.005, "hangs": math.inf}.get(keys[key], keys[key])
        responded = keys[key] not in ("fails", "varies") and takes < permit.seconds
        heappush(ends, (at + min(takes, permit.seconds), next(numbers), permit, key, responded))
        most = max(most, len(ends))
    return ended, most


def keys_of(*behaviours):
    return {f"{behaviour} {number}": behaviour for number, behaviour in enumerate(behaviours)}


GOOD = 0.005
# Keys, calls per second, the least share of the good keys' calls that succeed, the most calls at once.
SCENARIOS = {
    "one fails": (keys_of("fails", GOOD), 20, 1.0, 1),
    "one of two fails": (keys_of("fails", GOOD), 500, 1.0, 4),
    "one hangs": (keys_of("hangs", *[GOOD] * 9), 100, 1.0, 35),
    "a tenth fails": (keys_of(*(["fails"] + [GOOD] * 9) * 10), 500, 1.0, 4),
    "a tenth fails together": (keys_of(*["fails"] * 10, *[GOOD] * 90), 500, 0.98, 4),
    "a tenth hangs": (keys_of(*(["hangs"] + [GOOD] * 9) * 10), 100, 1.0, 35),
    "half fails": (keys_of(*["fails", GOOD] * 50), 500, 1.0, 4),
    "three of four fail": (keys_of(*["fails", "fails", "fails", GOOD] * 25), 500, 0.98, 4),
    "made-up keys fail": (keys_of(*["varies"] * 9, GOOD), 500, 0.9, 4),  # soon after the start all of them
    "all are slow": (keys_of(*[1.0] * 100), 50, 1.0, 51),
    "all fail": (keys_of(*["fails"] * 100), 500, None, 4),
    "all hang": (keys_of(*["hangs"] * 100), 100, None, 301),
}


@pytest.mark.parametrize("at", STARTS[:2])
@pytest.mark.parametrize(("keys", "per_second", "least", "most"), SCENARIOS.values(), ids=SCENARIOS)
def test_a_failing_key_costs_no_other(clock, at, keys, per_second, least, most):
    breaker, clock.seconds = CircuitBreaker(TIMEOUT), at
    ended, under_way = simulate(breaker, clock, keys, per_second, 10)
    good = [each for key in keys if isinstance(keys[key], float) for each in ended[key]]
    assert under_way <= most
    assert least is None or sum(good) >= least * len(good)
    # Whatever it was, after it each key is soon served.
    clock.seconds += TIMEOUT
    simulate(breaker, clock, dict.fromkeys(keys, GOOD), per_second, 2)
    ended, _ = simulate(breaker, clock, dict.fromkeys(keys, GOOD), per_second, 2)
    assert all(all(each) for each in ended.values())
