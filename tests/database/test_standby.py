"""A synchronous standby that is cut off: nothing is acknowledged that a failover could still lose."""

from collections.abc import Iterator
from uuid import uuid4

import psycopg
import pytest

from tests.database.subject import DEADLINE, Subject
from tests.support.examples import configuration
from tests.support.postgres import FaultyPostgres, standby_by
from tests.support.tcp_proxy import Proxy
from tests.support.waiting import eventually

_SYNC_STATE = b"SELECT sync_state FROM pg_catalog.pg_stat_replication WHERE state = 'streaming'"


@pytest.fixture
def link(server: FaultyPostgres) -> Iterator[Proxy]:
    """The link on which the standby follows its primary."""
    with Proxy(server.socket_path) as link:
        yield link


@pytest.fixture
def standby(link: Proxy, subject: Subject, admin: psycopg.Connection) -> Iterator[FaultyPostgres]:
    with standby_by(link.port) as follower:
        admin.execute(b"ALTER SYSTEM SET synchronous_standby_names = 'standby'")
        admin.execute(b"SELECT pg_reload_conf()")
        wait_for_sync(admin)
        yield follower
        link.release()


def wait_for_sync(primary: psycopg.Connection) -> None:
    eventually(lambda: primary.execute(_SYNC_STATE).fetchone() == ("sync",))


def test_retry_waits_for_the_standby(server, subject, standby, link, make_subject):
    key = str(uuid4())
    hasty = make_subject.again(subject, deadline=DEADLINE)
    hasty.backends()
    link.hold()
    assert hasty.client.create(configuration(), key=key).status_int == 500
    server.crash()
    server.start()
    eventually(lambda: subject.client.get(subject.stack_id).status_int == 200)
    # The create is visible on the primary, and would be lost with it.
    eventually(lambda: len(subject.client.page().json["items"]) == 2)
    hasty.backends()
    assert hasty.client.create(configuration(), key=key).status_int == 500
    assert hasty.client.create(configuration(name="other"), key=key).status_int == 500
    link.release()
    with psycopg.connect(server.url(), autocommit=True) as connection:
        wait_for_sync(connection)
    retried = subject.client.create(configuration(), key=key)
    assert retried.status_int == 200
    server.crash()
    with psycopg.connect(standby.url(), autocommit=True) as connection:
        assert connection.execute(b"SELECT pg_promote()").fetchone() == (True,)
    promoted = make_subject.again(subject, standby.url())
    assert promoted.client.get(retried.json["id"]).json == retried.json
