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
LOCK_ROW = b"SELECT FROM stackmgr.stacks WHERE stack_id = %s::text::uuid FOR UPDATE"
LOCK_TABLE = b"LOCK TABLE stackmgr.stacks IN ACCESS EXCLUSIVE MODE"
WAITING = (
    b"SELECT count(*) FROM pg_catalog.pg_stat_activity"
    b" WHERE datname = current_database() AND application_name = 'stackmgr' AND wait_event_type = 'Lock'"
)


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


def test_updates_that_wait_for_a_row_delay_no_read(client, admin, watcher):
    path = client.create()
    with ThreadPoolExecutor() as threads:
        with admin.transaction():
            admin.execute(LOCK_ROW, (path.rpartition("/")[2],))
            late = [threads.submit(client.request, "PATCH", path, {"name": "late"}) for _ in range(WAIT)]
            eventually(lambda: watcher.execute(WAITING).fetchone() == (WAIT,))
            assert client.request("GET", path, timeout=PATIENCE)[0] == 200
            assert not any(future.done() for future in late)
        assert [future.result()[0] for future in late] == [200] * WAIT


@pytest.mark.parametrize("path", ["/manager/stacks", f"/manager/stacks/{uuid4()}"], ids=["list", "get"])
def test_slow_reads_delay_no_other_request(client, admin, watcher, path):
    expected = client.request("GET", path)[0]
    with ThreadPoolExecutor() as threads:
        with admin.transaction():
            admin.execute(LOCK_TABLE)
            late = [threads.submit(client.request, "GET", path) for _ in range(WAIT)]
            # Up to four that start together share a round trip.
            eventually(lambda: watcher.execute(WAITING).fetchone() >= (1,))
            assert WorkerClient(client.port, "nonsense").request("GET", path, timeout=PATIENCE)[0] == 401
            assert not any(future.done() for future in late)
        assert [future.result()[0] for future in late] == [expected] * WAIT


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
            late = threads.submit(client.request, "GET", "/manager/stacks")
            eventually(lambda: watcher.execute(WAITING).fetchone() >= (1,))
            assert send_request(port, "/live", timeout=8)[0] == 200
            assert not late.done()
        assert late.result()[0] == 200


def test_connections_that_cannot_be_opened_delay_no_other_request(database_url, client):
    place = conninfo_to_dict(database_url)
    with Proxy(f"{place['host']}/.s.PGSQL.{place['port']}") as proxy, ThreadPoolExecutor() as threads:
        remote_url = make_conninfo(database_url, host="127.0.0.1", port=proxy.port)
        with running_service(remote_url, env=ENVIRONMENT) as service:
            late_client = WorkerClient(service.port, client.key)
            assert late_client.request("GET", "/manager/stacks")[0] == 200
            proxy.hold()
            late = [threads.submit(late_client.request, "GET", "/manager/stacks") for _ in range(WAIT)]
            eventually(lambda: proxy.connections > 1)
            assert (
                WorkerClient(service.port, "nonsense").request("GET", "/manager/stacks", timeout=PATIENCE)[0]
                == 401
            )
            assert not any(future.done() for future in late)
            proxy.release()
            assert [future.result()[0] for future in late] == [200] * WAIT


def test_a_silent_verifier_delays_no_other_request(database_url):
    with http_server() as unkey, ThreadPoolExecutor() as threads:
        unkey.behave = unkey.silence
        environment = ENVIRONMENT | {
            "STACKMGR_VERIFIER": "unkey",
            "STACKMGR_UNKEY_URL": unkey.url,
            "STACKMGR_UNKEY_ROOT_KEY": "root",
            "STACKMGR_VERIFY_TIMEOUT": "20",
            "STACKMGR_DATABASE_TIMEOUT": "5",
        }
        with running_service(database_url, env=environment) as service:
            client = WorkerClient(service.port, "key")
            late = [threads.submit(client.request, "GET", "/manager/stacks") for _ in range(WAIT)]
            eventually(lambda: len(unkey.requests) == WAIT)
            assert (
                WorkerClient(service.port, "").request("GET", "/manager/stacks", timeout=PATIENCE)[0] == 401
            )
            assert not any(future.done() for future in late)
            unkey.release.set()
            assert [future.result()[0] for future in late] == [503] * WAIT


def test_a_tls_handshake_that_hangs_delays_no_other_request(database_url):
    with socket.create_server(("127.0.0.1", 0)) as silent, ThreadPoolExecutor() as threads:
        environment = ENVIRONMENT | {
            "STACKMGR_VERIFIER": "unkey",
            "STACKMGR_UNKEY_URL": f"https://127.0.0.1:{silent.getsockname()[1]}",
            "STACKMGR_UNKEY_ROOT_KEY": "root",
            "STACKMGR_VERIFY_TIMEOUT": "20",
            "STACKMGR_DATABASE_TIMEOUT": "5",
        }
        with running_service(database_url, env=environment) as service, ExitStack() as cleanup:
            client = WorkerClient(service.port, "key")
            late = [threads.submit(client.request, "GET", "/manager/stacks") for _ in range(WAIT)]
            accepted = [cleanup.enter_context(silent.accept()[0]) for _ in range(WAIT)]
            assert all(each.recv(1) for each in accepted)
            assert (
                WorkerClient(service.port, "").request("GET", "/manager/stacks", timeout=PATIENCE)[0] == 401
            )
            assert not any(future.done() for future in late)
            cleanup.close()
            assert [future.result()[0] for future in late] == [503] * WAIT
