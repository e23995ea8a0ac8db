"""While Unkey does not respond, requests return 503 at once; when it does again, they soon succeed."""

import json
import math
from heapq import heappop, heappush
from itertools import count, cycle
from types import SimpleNamespace

import pytest

from stackmgr.access.verifiers import circuit_breaker
from stackmgr.access.verifiers.circuit_breaker import FAILURES_TO_OPEN, PROBE_INTERVAL, CircuitBreaker
from stackmgr.errors import CircuitOpen
from tests.support.http_server import reset, respond
from tests.support.unkey_server import accepted, verification
from tests.support.waiting import eventually

TIMEOUT = 3.0
NO_RESPONSE = {
    "timeout": None,
    "reset": reset,
    **{f"HTTP {status}": respond(status, {}) for status in (408, 499, 500, 503)},
}
RESPONSES = {
    "rejected": respond(200, verification("NOT_FOUND")),
    "rate limited": respond(200, verification("RATE_LIMITED")),
    "HTTP 429": respond(429, {}),
    "HTTP 403": respond(403, {}),
    "not JSON": respond(200, b"<html>"),
}


@pytest.fixture(params=[0.0, 1e7])
def clock(request, monkeypatch):
    """The clock of the circuit breaker, in seconds since the start of the machine, which a test sets."""
    now = SimpleNamespace(seconds=request.param)
    monkeypatch.setattr(circuit_breaker, "time", SimpleNamespace(monotonic=lambda: now.seconds))
    return now


@pytest.fixture(params=["of one key", "of all keys"])
def breaker(request, clock):
    """A circuit breaker, for which a test uses one key or three."""
    breaker = CircuitBreaker(TIMEOUT)
    acquire, keys = breaker.acquire, cycle(range(3) if request.param == "of all keys" else [0])
    breaker.acquire = lambda: acquire(next(keys))
    return breaker


def fail(breaker, times=1):
    for _ in range(times):
        breaker.release(breaker.acquire(), responded=False)


def is_open(breaker):
    """Whether the next call would be a probe, or none."""
    try:
        permit = breaker.acquire()
    except CircuitOpen:
        return True
    breaker.release(permit, responded=True)
    return permit.circuit is not None


@pytest.mark.parametrize("behaviour", NO_RESPONSE.values(), ids=NO_RESPONSE)
def test_failures_open_the_circuit(make_unkey_client, unkey, clock, behaviour):
    unkey.behave = behaviour or unkey.silence
    client = make_unkey_client(unkey.url, timeout=0.3)
    statuses = [client.page().status_int for _ in range(FAILURES_TO_OPEN)]
    # One that was given up may arrive later.
    calls = eventually(lambda: len(unkey.requests) >= FAILURES_TO_OPEN and len(unkey.requests))
    statuses += [client.page().status_int for _ in range(10)]
    assert statuses == [503] * (FAILURES_TO_OPEN + 10)
    assert len(unkey.requests) == unkey.connections == calls


@pytest.mark.parametrize("behaviour", RESPONSES.values(), ids=RESPONSES)
def test_any_response_keeps_the_circuit_closed(make_unkey_client, unkey, behaviour):
    unkey.behave = behaviour
    client = make_unkey_client(unkey.url)
    for _ in range(FAILURES_TO_OPEN + 2):
        client.page()
    assert (len(unkey.requests), unkey.connections) == (FAILURES_TO_OPEN + 2, 1)


def with_key(client, key):
    client.key = key
    return client.page()


def test_a_key_that_fails_at_the_verifier_rejects_no_other(make_unkey_client, unkey, clock):
    client = make_unkey_client(unkey.url)
    good = respond(200, accepted(client.external_id, f"id_{client.external_id}"))
    unkey.behave = lambda sock, request: (respond(500, {}) if b"bad" in request.body else good)(sock, request)
    keys = ["bad"] * FAILURES_TO_OPEN + ["good"] * 6 + ["bad", "good"] * 3
    assert [with_key(client, key).status_int for key in keys] == [503] * 3 + [200] * 6 + [503, 200] * 3
    assert sum(b"bad" in request.body for request in unkey.requests) == FAILURES_TO_OPEN


@pytest.fixture
def blocked_client(make_unkey_client, unkey, clock):
    """A client whose circuit of all keys is open: Unkey has just failed."""
    client = make_unkey_client(unkey.url)
    unkey.behave = respond(500, {})
    for number in range(FAILURES_TO_OPEN + 1):  # the last is a probe
        assert with_key(client, f"key-{number}").status_int == 503
    return client


def test_a_probe_that_succeeds_closes_the_circuit(blocked_client, unkey, clock, caplog):
    unkey.behave = respond(200, accepted(blocked_client.external_id, f"id_{blocked_client.external_id}"))
    response = blocked_client.page()
    assert caplog.records == []
    assert (response.status_int, response.json["code"]) == (503, "service_unavailable")
    assert "circuit" not in json.dumps(response.json)
    assert "Retry-After" not in response.headers
    clock.seconds += 2 * PROBE_INTERVAL  # the second for a key that was the last to probe
    assert [blocked_client.page().status_int for _ in range(3)] == [200] * 3
    logged = [*caplog.get_records("setup"), *caplog.records]
    assert [record.getMessage() for record in logged if record.levelname == "WARNING"] == [
        "The verifier does not respond: requests return 503 at once until it does",
        "The verifier responds again",
    ]


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


@pytest.mark.parametrize(("keys", "per_second", "least", "most"), SCENARIOS.values(), ids=SCENARIOS)
def test_a_failing_key_costs_no_other(clock, keys, per_second, least, most):
    breaker = CircuitBreaker(TIMEOUT)
    ended, under_way = simulate(breaker, clock, keys, per_second, 10)
    good = [
        is_good
        for key, behaviour in keys.items()
        if behaviour not in ("fails", "hangs", "varies")
        for is_good in ended[key]
    ]
    assert under_way <= most
    assert least is None or sum(good) >= least * len(good)
    # Whatever it was, after it each key is soon served.
    clock.seconds += TIMEOUT
    simulate(breaker, clock, dict.fromkeys(keys, GOOD), per_second, 2)
    ended, _ = simulate(breaker, clock, dict.fromkeys(keys, GOOD), per_second, 2)
    assert all(all(each) for each in ended.values())


def probe(breaker, clock):
    """Return the permit of the one probe of an interval."""
    clock.seconds += PROBE_INTERVAL
    permit = breaker.acquire()
    with pytest.raises(CircuitOpen, match="circuit_open"):
        breaker.acquire()
    return permit


def test_probes_are_short_but_for_one_each_time_out(breaker, clock):
    fail(breaker, FAILURES_TO_OPEN)
    opened_at = clock.seconds
    while (permit := probe(breaker, clock)).seconds == PROBE_INTERVAL:
        breaker.release(permit, responded=False)
    assert permit.seconds == TIMEOUT
    assert TIMEOUT <= clock.seconds - opened_at < TIMEOUT + PROBE_INTERVAL
    for _ in range(5):  # while the full probe hangs
        assert probe(breaker, clock).seconds == PROBE_INTERVAL
    breaker.release(permit, responded=False)
    assert probe(breaker, clock).seconds == PROBE_INTERVAL
    clock.seconds += TIMEOUT
    assert probe(breaker, clock).seconds == TIMEOUT


def test_slow_full_probe_closes_the_circuit(breaker, clock):
    fail(breaker, FAILURES_TO_OPEN)
    clock.seconds += TIMEOUT
    slow = probe(breaker, clock)
    assert slow.seconds == TIMEOUT
    for _ in range(4):
        breaker.release(probe(breaker, clock), responded=False)
    breaker.release(slow, responded=True)
    assert not is_open(breaker)


def test_calls_before_the_recovery_do_not_count(breaker, clock):
    hanging = [breaker.acquire() for _ in range(20)]
    clock.seconds += 0.1
    fail(breaker, FAILURES_TO_OPEN)
    clock.seconds += PROBE_INTERVAL
    breaker.release(breaker.acquire(), responded=True)
    for permit in hanging:
        breaker.release(permit, responded=False)
    assert not is_open(breaker)


def test_hanging_calls_count_at_the_first_failure(breaker, clock):
    hanging = [breaker.acquire() for _ in range(FAILURES_TO_OPEN)]
    clock.seconds += TIMEOUT
    breaker.release(hanging[0], responded=False)
    assert is_open(breaker)
