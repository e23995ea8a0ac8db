"""While Unkey does not respond, requests return 503 at once; when it does again, they soon succeed."""

import json
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


@pytest.fixture
def clock(monkeypatch):
    """The clock of the circuit breaker, which a test sets."""
    now = SimpleNamespace(seconds=1000.0)
    monkeypatch.setattr(circuit_breaker, "time", SimpleNamespace(monotonic=lambda: now.seconds))
    return now


@pytest.fixture
def breaker(clock):
    return CircuitBreaker(TIMEOUT)


def fail(breaker, times=1):
    for _ in range(times):
        breaker.release(breaker.acquire(), responded=False)


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


def test_only_consecutive_failures_count(breaker, clock):
    for _ in range(5):
        for _ in range(FAILURES_TO_OPEN - 1):
            fail(breaker)
            clock.seconds += TIMEOUT
        assert not breaker.is_open
        breaker.release(breaker.acquire(), responded=True)


@pytest.fixture
def blocked_client(make_unkey_client, unkey, clock):
    """A client whose circuit is open: Unkey has just failed."""
    client = make_unkey_client(unkey.url)
    unkey.behave = respond(500, {})
    for _ in range(FAILURES_TO_OPEN):
        assert client.page().status_int == 503
    return client


def test_a_probe_that_succeeds_closes_the_circuit(blocked_client, unkey, clock, caplog):
    unkey.behave = respond(200, accepted(blocked_client.external_id, f"id_{blocked_client.external_id}"))
    response = blocked_client.page()
    assert caplog.records == []
    assert (response.status_int, response.json["code"]) == (503, "service_unavailable")
    assert "circuit" not in json.dumps(response.json)
    assert "Retry-After" not in response.headers
    clock.seconds += PROBE_INTERVAL
    assert [blocked_client.page().status_int for _ in range(3)] == [200] * 3
    logged = [*caplog.get_records("setup"), *caplog.records]
    assert [record.getMessage() for record in logged if record.levelname == "WARNING"] == [
        "The verifier does not respond: requests return 503 at once until it does",
        "The verifier responds again",
    ]


def probe(breaker, clock):
    """Return the permit of the one probe of an interval."""
    clock.seconds += PROBE_INTERVAL
    permit = breaker.acquire()
    with pytest.raises(CircuitOpen, match="verifier_circuit_open"):
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
    assert not breaker.is_open


def test_calls_before_the_recovery_do_not_count(breaker, clock):
    hanging = [breaker.acquire() for _ in range(20)]
    clock.seconds += 0.1
    fail(breaker, FAILURES_TO_OPEN)
    clock.seconds += PROBE_INTERVAL
    breaker.release(breaker.acquire(), responded=True)
    for permit in hanging:
        breaker.release(permit, responded=False)
    assert not breaker.is_open


def test_hanging_calls_count_at_the_first_failure(breaker, clock):
    hanging = [breaker.acquire() for _ in range(FAILURES_TO_OPEN)]
    clock.seconds += TIMEOUT
    breaker.release(hanging[0], responded=False)
    assert breaker.is_open


def test_new_calls_do_not_count_as_hanging(breaker, clock):
    first = breaker.acquire()
    clock.seconds += TIMEOUT - 0.1
    for _ in range(10):
        breaker.acquire()
    clock.seconds += 0.1
    breaker.release(first, responded=False)
    assert not breaker.is_open
