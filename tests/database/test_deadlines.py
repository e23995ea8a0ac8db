"""Deadlines: whatever the database does, a response comes in time and only that request is lost."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from stackmgr.access.verifiers.database import DatabaseVerifier
from tests.database.subject import at_once, held_row
from tests.support.examples import configuration
from tests.support.waiting import eventually

# A third of it is the lock timeout: a busy machine must not decide what a test sees.
DEADLINE = 4.0


@pytest.fixture
def deadline() -> float:
    return DEADLINE


@contextmanager
def in_time() -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < 10 * DEADLINE


@pytest.fixture
def after_verification(subject, monkeypatch):
    verify = DatabaseVerifier.verify
    subject.client.change_worker()

    def after(call: Callable[[], object]) -> None:
        monkeypatch.setattr(DatabaseVerifier, "verify", lambda *given: (verify(*given), call())[0])

    return after


@pytest.mark.parametrize("write", ["create", "update"])
def test_frozen_database_holds_no_request(server, subject, write, causes):
    """The write of a known key has been sent; one of two in a batch may have to be prepared first."""
    eventually(lambda: subject.operations()["get"]() == 200)
    with server.frozen(), in_time():
        assert at_once([subject.operations()[name] for name in (write, "list", "get")]) == [500, 503, 503]
    assert f"DatabaseError deadline stack_{write}" in causes()
    subject.assert_complete()


def test_without_a_connection_nothing_is_sent(subject):
    with subject.every_connection(), in_time():
        assert at_once(list(subject.operations().values())) == [503] * 4
    assert subject.client.statements == []


def test_large_body_ends_at_the_deadline(server, subject, after_verification, monkeypatch):
    after_verification(server.freeze)
    with in_time():
        assert subject.client.create(configuration(name="n" * 261_000)).status_int == 500
    monkeypatch.undo()
    server.thaw()
    subject.assert_complete()


def test_held_row_delays_no_read(subject, admin):
    with held_row(admin, subject.stack_id):
        with in_time():
            assert subject.operations()["update"]() == 500
        assert len(subject.database.round_trips._alone) == 1
        assert subject.operations()["get"]() == 200
        assert subject.operations()["create"]() == 201
    assert subject.operations()["update"]() == 200
    subject.assert_complete()


def test_deadline_stops_while_a_client_sends(subject, after_verification):
    after_verification(lambda: time.sleep(DEADLINE * 1.2))
    assert subject.operations()["update"]() == 200
