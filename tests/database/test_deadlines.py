"""Deadlines: whatever the database does, a response comes in time and only that request is lost."""

import time

import pytest

from stackmgr.database.statements import Statement
from stackmgr.errors import DatabaseError
from tests.database.subject import DEADLINE, at_once, held_row, in_time
from tests.support.examples import configuration

OPERATIONS = ("create", "list", "get", "update")
SLEEP = Statement(
    name="sleep", text=b"SELECT pg_catalog.pg_sleep($1::integer)", parameters=("seconds",), writes=False
)


@pytest.fixture
def deadline() -> float:
    return DEADLINE


def test_frozen_database_holds_no_request(server, subject):
    """The writes of a known key have been sent."""
    with server.frozen(), in_time():
        assert at_once(list(subject.operations().values())) == [500, 503, 503, 500]
    subject.assert_complete()


def test_stopped_database_holds_no_request(server, subject):
    server.stop()
    with in_time():
        assert at_once(list(subject.operations().values())) == [503] * 4
    server.start()
    subject.assert_complete()


def test_without_a_connection_nothing_is_sent(subject):
    with subject.every_connection(), in_time():
        assert at_once(list(subject.operations().values())) == [503] * 4
    assert subject.client.statements == []


def test_slow_network_is_waited_for(network, remote_subject):
    network.delay = DEADLINE / 16
    assert remote_subject.operations()["get"]() == 200


@pytest.mark.parametrize("operation", OPERATIONS)
def test_freeze_after_verification_is_500(server, subject, operation):
    subject.after_verification(server.freeze)
    with in_time():
        assert subject.operations()[operation]() == 500
    subject.verifier.afterwards = lambda: None
    server.thaw()
    subject.assert_complete()


def test_large_body_ends_at_the_deadline(server, subject):
    subject.after_verification(server.freeze)
    with in_time():
        assert subject.client.create(configuration(name="n" * 261_000)).status_int == 500
    subject.verifier.afterwards = lambda: None
    server.thaw()
    subject.assert_complete()


def test_held_row_delays_no_read(subject, admin):
    with held_row(admin, subject.stack_id):
        with in_time():
            assert subject.operations()["update"]() == 500
        assert subject.operations()["get"]() == 200
        assert subject.operations()["create"]() == 201
    assert subject.operations()["update"]() == 200
    subject.assert_complete()


def test_64_writers_on_a_held_row_get_responses(subject, admin):
    with held_row(admin, subject.stack_id), in_time():
        statuses = at_once([subject.operations()["update"]] * 64)
    # Those that came to the row waited for it in vain.  The others had no connection.
    assert {500} <= set(statuses) <= {500, 503}
    assert at_once([subject.operations()["get"]] * 16) == [200] * 16
    subject.assert_complete()


def test_deadline_covers_all_statements(subject):
    with in_time():
        session = subject.database.session()
        for _ in range(2):
            session.row(SLEEP, {"seconds": 0})
        with pytest.raises(DatabaseError) as caught:
            # The server gives up first, so that it is known what became of the statement.
            session.row(SLEEP, {"seconds": 60})
        assert caught.value.sqlstate == "57014"
        with pytest.raises(DatabaseError, match="deadline") as caught:
            session.row(SLEEP, {"seconds": 60})
        assert caught.value.sqlstate is None
        with pytest.raises(DatabaseError, match="no_connection"):
            session.row(SLEEP, {"seconds": 0})
    subject.assert_complete()


def test_deadline_stops_while_a_client_sends(subject):
    subject.after_verification(lambda: time.sleep(DEADLINE * 1.2))
    assert subject.operations()["update"]() == 200
