"""The connection of a command: its time limit, its replacement, and the words of its failures."""

import signal
import time
from uuid import uuid4

import psycopg
import pytest

from stackmgr.access import api_keys
from stackmgr.errors import CommandError, DatabaseError
from stackmgr.operate import connection
from tests.support.clusters import new_database


def test_a_time_limit_ends_the_body_and_leaves_no_alarm():
    with (
        pytest.raises(CommandError, match=r"^the database did not respond within 0\.1 s$"),
        connection.time_limit(0.1),
    ):
        time.sleep(5)
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_a_lost_connection_is_replaced_within_the_session(database_url):
    with (
        connection.operator_session(database_url) as session,
        psycopg.connect(database_url, autocommit=True) as admin,
    ):
        issued = api_keys.create(session, str(uuid4()))
        pid = session._connection.info.backend_pid
        assert admin.execute(b"SELECT pg_terminate_backend(%s, 5000)", [pid]).fetchone() == (True,)
        assert api_keys.find(session, issued.key_id) is not None
        assert session._connection.info.backend_pid != pid


def test_a_failed_statement_of_an_operator_is_worded_without_a_schema(server_url, database_url):
    with (
        new_database(server_url) as url,
        pytest.raises(CommandError, match="no schema of this release: run 'stackmgr migrate' first"),
        connection.operator_session(url) as session,
    ):
        api_keys.find(session, str(uuid4()))


def test_a_session_as_the_service_has_the_failures_of_a_request():
    with (
        connection.service_session("postgresql://somebody:hush@127.0.0.1:1/x") as session,
        pytest.raises(DatabaseError, match="no_connection"),
    ):
        api_keys.find(session, str(uuid4()))
