"""The service's session settings override other defaults, and end the writes of dead clients."""

from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest
from psycopg.conninfo import make_conninfo

from stackmgr.database import conninfo
from stackmgr.database.connection import DatabaseConnection
from stackmgr.database.conninfo import DEFAULT_SETTINGS, SERVER_SETTINGS, completed_conninfo
from stackmgr.database.session import SESSION_SECONDS
from stackmgr.database.statements import Statement
from stackmgr.errors import CommandError
from stackmgr.operate import keys, migrations, preflight
from stackmgr.operate.operator import operating
from tests.support.clusters import new_database
from tests.support.recorder import opened

# Of each setting that the service pins, a value that would break it, or that is at least another one.
HOSTILE = {
    "search_path": "public", "standard_conforming_strings": "off", "transform_null_equals": "on",
    "row_security": "off", "default_transaction_isolation": "serializable",
    "default_transaction_deferrable": "on", "DateStyle": "German, DMY", "IntervalStyle": "sql_standard",
    "TimeZone": "Asia/Tokyo", "bytea_output": "escape", "extra_float_digits": "-15",
    "synchronous_commit": "off", "client_min_messages": "error", "exit_on_error": "on",
    "client_connection_check_interval": "0", "plan_cache_mode": "force_custom_plan",
    "quote_all_identifiers": "on", "enable_seqscan": "on", "enable_sort": "on", "jit": "on",
    "lock_timeout": "1", "statement_timeout": "1",
}  # fmt: skip
PINNED = SERVER_SETTINGS | DEFAULT_SETTINGS | {"role": "stackmgr_app"}
PINNED |= {"lock_timeout": "15s", "statement_timeout": "30s"}
SCOPES = b"ROLE postgres", b"DATABASE stackmgr", b"ROLE postgres IN DATABASE stackmgr", b"SYSTEM"


@pytest.fixture(params=SCOPES)
def set_default(admin, request):
    # So that this login is not kept from undoing it.
    admin.execute(b"SET statement_timeout = 0; SET lock_timeout = 0")

    def set_default(name: str, value: str) -> None:
        admin.execute(b"ALTER %s SET %s = '%s'" % (request.param, name.encode(), value.encode()))
        admin.execute(b"SELECT pg_reload_conf()")

    yield set_default
    admin.execute(b"ALTER %s RESET ALL" % request.param)
    admin.execute(b"SELECT pg_reload_conf()")


def test_no_default_changes_an_operation_or_a_migration(server, make_subject, set_default):
    for name, value in HOSTILE.items():
        set_default(name, value)
    assert_pinned(server.url())
    findings = preflight.examine(server.url(), thorough=True)
    assert (findings.problems, findings.reachable) == ([], True)
    subject = make_subject()
    assert {call() for call in subject.operations().values()} == {200, 201}
    assert subject.create_stack() == subject.client.walk(1)[-1] == subject.stack_id
    assert migrations.apply(server.url()) == []
    with new_database(f"{server.url('postgres')}&options=-c%20statement_timeout%3D0") as url:
        assert migrations.apply(url) == migrations.available()
        assert preflight.examine(url).problems == []


def test_no_connection_string_changes_what_is_pinned(server):
    options = " ".join(f"-c {name}={value.replace(' ', chr(92) + ' ')}" for name, value in HOSTILE.items())
    url = make_conninfo(server.url(), options=options, client_encoding="LATIN1")
    assert_pinned(url, **{name: HOSTILE[name] for name in DEFAULT_SETTINGS})


def test_a_connection_with_other_settings_is_closed(server):
    url = completed_conninfo(server.url(), "stackmgr_app", SESSION_SECONDS)
    wanted = PINNED | {"lock_timeout": "1500ms", "statement_timeout": "3s"}
    others = {"role": "stackmgr_reader", "lock_timeout": "9s", "statement_timeout": "9s"}
    assert HOSTILE.keys() == PINNED.keys() - {"role"}
    for name, value in {**HOSTILE, **others}.items():
        with DatabaseConnection.connect(url) as connection:
            connection.execute(f"SET {name} = '{value}'".encode())
            with pytest.raises(conninfo.SessionSettingsError) as caught:
                conninfo.verify_settings(connection)
            assert f": {name} is {value}, not {wanted[name].replace(',', ', ')}. " in str(caught.value)
            assert connection.closed


@pytest.mark.usefixtures("standby_wanted")
def test_cancelled_wait_is_not_acknowledged(server, subject, make_subject, admin, watcher):
    """Also where the settings of the login hide the warning."""

    def cancel() -> None:
        admin.execute(b"SELECT pg_cancel_backend(%d)" % watcher.waiting_one())

    admin.execute(b"SET synchronous_commit = local")
    admin.execute(b"ALTER ROLE postgres SET client_min_messages = 'error'")
    try:
        subject = make_subject.again(subject)
        with ThreadPoolExecutor() as threads:
            for operation in ("update", "create"):
                status = threads.submit(subject.operations()[operation])
                cancel()
                assert status.result() == 500
            with operating(server.url()) as operator:
                threads.submit(cancel)
                with pytest.raises(CommandError, match="committed, but the database warns: canceling wait"):
                    keys.create(operator, str(uuid4()))
    finally:
        admin.execute(b"ALTER ROLE postgres RESET ALL")


def assert_pinned(url: str, **otherwise: str) -> None:
    with opened(url, pool_size=1, deadline=50.0) as database:
        session = database.session()
        for name, value in {**PINNED, "client_encoding": "UTF8", **otherwise}.items():
            query = b"SELECT pg_catalog.current_setting('%s')" % name.encode()
            show = Statement(f"show_{name}", query, parameters=(), writes=False)
            [shown] = session.row(show, {})
            assert shown.replace(", ", ",") == value, name
