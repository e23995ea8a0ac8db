"""A synchronous standby that is cut off: nothing is acknowledged that a failover could still lose."""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

from tests.database.service import DEADLINE, Service, ServiceMaker
from tests.support.examples import configuration
from tests.support.postgres import FaultyPostgres
from tests.support.tcp_proxy import Proxy
from tests.support.waiting import eventually

_NAME = "standby"
_SYNC_STATE = b"SELECT sync_state FROM pg_catalog.pg_stat_replication WHERE state = 'streaming'"
_TERMINATE_WAITING = (
    b"SELECT pg_terminate_backend(pid) FROM pg_catalog.pg_stat_activity WHERE wait_event = 'SyncRep'"
)


@dataclass
class Standby:
    """A synchronous standby, and the link on which it follows its primary."""

    server: FaultyPostgres
    primary: FaultyPostgres
    link: Proxy

    def cut_off(self) -> None:
        self.link.hold()

    def reconnect(self) -> None:
        """Let it follow again, and return once commits wait for it."""
        self.link.release()
        with psycopg.connect(self.primary.url(), autocommit=True) as connection:
            eventually(lambda: connection.execute(_SYNC_STATE).fetchone() == ("sync",), 30)

    def promote(self) -> None:
        with psycopg.connect(self.server.url(), autocommit=True) as connection:
            assert connection.execute(b"SELECT pg_promote()").fetchone() == (True,)


@pytest.fixture
def standby(server: FaultyPostgres, service: Service, login: psycopg.Connection) -> Iterator[Standby]:
    with Proxy(server.socket_path) as link, tempfile.TemporaryDirectory(prefix="stackmgr-standby-") as folder:
        follower = FaultyPostgres(Path(folder) / "data")
        follower.follow(f"host=127.0.0.1 port={link.port} user=postgres application_name={_NAME}")
        with follower:
            login.execute(b"ALTER SYSTEM SET synchronous_standby_names = 'standby'")
            login.execute(b"SELECT pg_reload_conf()")
            standby = Standby(follower, server, link)
            standby.reconnect()
            yield standby
            link.release()


def restart(primary: FaultyPostgres) -> None:
    primary.crash()
    primary.start()


def end_the_wait(primary: FaultyPostgres) -> None:
    with psycopg.connect(primary.url(), autocommit=True) as connection:
        eventually(lambda: connection.execute(_TERMINATE_WAITING).rowcount)


@pytest.mark.parametrize("meanwhile", [restart, end_the_wait])
def test_a_retry_is_acknowledged_only_once_the_standby_has_its_stack(
    server: FaultyPostgres,
    service: Service,
    standby: Standby,
    make_service: ServiceMaker,
    meanwhile: Callable[[FaultyPostgres], None],
):
    key = str(uuid4())
    hasty = make_service.again(service, deadline=DEADLINE)
    hasty.backends()
    standby.cut_off()
    assert hasty.client.create(configuration(), key=key).status_int == 500
    meanwhile(server)
    eventually(lambda: service.client.get(service.stack_id).status_int == 200)
    # The create is visible on the primary, and would be lost with it.
    eventually(lambda: len(service.client.page().json["items"]) == 2)
    hasty.backends()
    assert hasty.client.create(configuration(), key=key).status_int == 500
    assert hasty.client.create(configuration(name="other"), key=key).status_int == 500
    standby.reconnect()
    retried = service.client.create(configuration(), key=key)
    assert retried.status_int == 200
    server.crash()
    standby.promote()
    promoted = make_service.again(service, standby.server.url())
    assert promoted.client.get(retried.json["id"]).json == retried.json
