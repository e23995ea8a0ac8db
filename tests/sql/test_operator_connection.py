"""The operator's connection: its time limit, its transactions, and the words of its failures."""

import signal
import time
from uuid import uuid4

import pytest

from stackmgr.errors import CommandError
from stackmgr.operate import issued_keys
from stackmgr.operate.connection import operating, time_limit

STATE = b"SELECT current_user, current_setting('role') AS role, current_setting('search_path') AS path"


def test_a_time_limit_ends_the_body_and_leaves_no_alarm():
    with (
        pytest.raises(CommandError, match=r"^the database did not respond within 0\.1 s: see"),
        time_limit(0.1),
    ):
        time.sleep(5)
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_nothing_of_an_operator_is_left_in_the_session(database_url):
    with operating(database_url) as operator:
        connection = operator._connection
        before = connection.execute(STATE).fetchone()
        issued = issued_keys.create(operator, str(uuid4()))
        assert issued_keys.find(operator, issued.key_id) is not None
        assert next(issued_keys.list_all(operator)) is not None
        operator.vacuum_receipts()
        assert connection.execute(STATE).fetchone() == before


def test_other_warning_fails_no_command(database_url):
    with operating(database_url) as operator, operator.transaction():
        operator._connection.execute(b"DO $$ BEGIN RAISE WARNING 'vacuum soon'; END $$")
