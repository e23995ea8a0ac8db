"""A request that waits delays no other: the worker serves the others meanwhile."""

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.support.examples import configuration
from tests.support.http_server import http_server
from tests.support.server import free_port, running_service, send_request
from tests.support.tcp_proxy import Proxy
from tests.support.waiting import eventually

# Longer than a test waits for the response that is not to wait: it must not come because time is up.
ENVIRONMENT = {"WEB_CONCURRENCY": "1", "STACKMGR_CONCURRENCY": "16", "STACKMGR_DATABASE_TIMEOUT": "25"}
PATIENCE = 20
WAIT = 3  # of the four that may run with keys that have not been accepted
LOCK_TABLE = b"LOCK TABLE stackmgr.stacks IN ACCESS EXCLUSIVE MODE"
WAITING = (
    b"SELECT count(*) FROM pg_catalog.pg_stat_activity"
    b" WHERE datname = current_database() AND application_name = 'stackmgr' AND wait_event_type = 'Lock'"
)


LIST = ("GET", "/manager/stacks")


@dataclass(frozen=True)
class WorkerClient:
    """A manager whose requests go to one worker, each over a connection of its own."""

    port: int
    key: str

    def request(
        self, method: str, path: str, document: object = None, timeout: float = 30
    ) -> tuple[int, str]:
        headers = {"Authorization": f"Bearer {self.key}", "Idempotency-Key": str(uuid4())}
        body = None if document is None else json.dumps(document)
        return send_request(self.port, path, headers, method, body, timeout=timeout)

    def create(self) -> str:
        status, body = self.request("POST", "/manager/stacks", configuration())
        assert status == 201
        return f"/manager/stacks/{json.loads(body)['id']}"


@pytest.fixture(scope="module")
def client(database_url: str, new_key) -> Iterator[WorkerClient]:
    with running_service(database_url, env=ENVIRONMENT) as service:
        yield WorkerClient(service.port, new_key())


@pytest.fixture
def watcher(database_url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


def check_that_no_other_waits(client, request, expected, is_waiting, release):
    """Send a *request* that waits until *release* a few times; another request is served meanwhile."""
    with ThreadPoolExecutor() as threads:
        late = [threads.submit(client.request, *request) for _ in range(WAIT)]
        eventually(is_waiting)
        assert WorkerClient(client.port, "").request(*LIST, timeout=PATIENCE)[0] == 401
        assert not any(future.done() for future in late)
        release()
        assert [future.result()[0] for future in late] == [expected] * WAIT


@pytest.mark.parametrize(("kind", "waits"), [("update", WAIT), ("list", 1), ("get", 1)])
def test_requests_that_wait_for_a_table_delay_no_other(client, admin, watcher, kind, waits):
    path = client.create()
    request = {"update": ("PATCH", path, {"name": "late"}), "list": LIST, "get": ("GET", path)}[kind]
    with ExitStack() as lock:
        lock.enter_context(admin.transaction())
        admin.execute(LOCK_TABLE)
        # Up to four reads that start together share a round trip.
        check_that_no_other_waits(
            client, request, 200, lambda: watcher.execute(WAITING).fetchone() >= (waits,), lock.close
        )


def test_writes_of_two_managers_that_wait_for_a_table_leave_the_reads_to_a_third(
    client, new_key, admin, watcher
):
    managers = [client, *(WorkerClient(client.port, new_key()) for _ in range(2))]
    paths = [manager.create() for manager in managers]
    with ThreadPoolExecutor(48) as threads, admin.transaction():
        admin.execute(b"LOCK TABLE stackmgr.stacks IN SHARE MODE")
        for manager, path in zip(managers[:2], paths, strict=False):
            for _ in range(24):
                threads.submit(manager.request, "PATCH", path, {"name": "late"})
        eventually(lambda: watcher.execute(WAITING).fetchone() >= (6,))
        assert [managers[2].request("GET", paths[2])[0] for _ in range(8)] == [200] * 8


def test_the_operators_listener_waits_for_no_managers_request(database_url, new_key, admin, watcher):
    port = free_port()
    environment = ENVIRONMENT | {
        "STACKMGR_CONCURRENCY": "1", "STACKMGR_DATABASE_TIMEOUT": "11", "STACKMGR_QUEUE_TIMEOUT": "10",
        "STACKMGR_ADMIN_BIND": f"127.0.0.1:{port}",
    }  # fmt: skip
    with running_service(database_url, env=environment) as service, ThreadPoolExecutor() as threads:
        client = WorkerClient(service.port, new_key())
        with admin.transaction():
            admin.execute(LOCK_TABLE)
            late = threads.submit(client.request, *LIST)
            eventually(lambda: watcher.execute(WAITING).fetchone() >= (1,))
            assert send_request(port, "/live", timeout=8)[0] == 200
            assert not late.done()
        assert late.result()[0] == 200


def test_connections_that_cannot_be_opened_delay_no_other_request(database_url, client):
    place = conninfo_to_dict(database_url)
    with Proxy(f"{place['host']}/.s.PGSQL.{place['port']}") as proxy:
        remote_url = make_conninfo(database_url, host="127.0.0.1", port=proxy.port)
        with running_service(remote_url, env=ENVIRONMENT) as service:
            late = WorkerClient(service.port, client.key)
            assert late.request(*LIST)[0] == 200
            proxy.hold()
            check_that_no_other_waits(late, LIST, 200, lambda: proxy.connections > 1, proxy.release)


def of_unkey(url: str) -> dict[str, str]:
    return ENVIRONMENT | {
        "STACKMGR_VERIFIER": "unkey", "STACKMGR_UNKEY_URL": url, "STACKMGR_UNKEY_ROOT_KEY": "root",
        "STACKMGR_VERIFY_TIMEOUT": "20", "STACKMGR_DATABASE_TIMEOUT": "5",
    }  # fmt: skip


def test_a_silent_verifier_delays_no_other_request(database_url):
    with http_server() as unkey, running_service(database_url, env=of_unkey(unkey.url)) as service:
        unkey.behave = unkey.silence
        late = WorkerClient(service.port, "key")
        check_that_no_other_waits(late, LIST, 503, lambda: len(unkey.requests) == WAIT, unkey.release.set)


def test_a_tls_handshake_that_hangs_delays_no_other_request(database_url):
    with socket.create_server(("127.0.0.1", 0)) as silent, ExitStack() as accepted:
        environment = of_unkey(f"https://127.0.0.1:{silent.getsockname()[1]}")

        def has_begun() -> bool:
            clients = [accepted.enter_context(silent.accept()[0]) for _ in range(WAIT)]
            return all(each.recv(1) for each in clients)

        with running_service(database_url, env=environment) as service:
            late = WorkerClient(service.port, "key")
            check_that_no_other_waits(late, LIST, 503, has_begun, accepted.close)
