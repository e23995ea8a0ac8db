"""Fixtures: an application with an Unkey of its own, the contents of its tables, the operator's commands."""

import ssl
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any
from uuid import uuid4

import psycopg
import pytest
import trustme

from stackmgr.access.verifiers import circuit_breaker
from stackmgr.access.verifiers.remote import Endpoint
from stackmgr.access.verifiers.unkey import UnkeyVerifier
from stackmgr.database.pool import Database
from stackmgr.http.app import Application
from stackmgr.operate import erasure, keys
from stackmgr.settings import Secret
from tests.support.client import Client
from tests.support.command_line import runner
from tests.support.examples import configuration
from tests.support.http_server import HttpServer, http_server, respond
from tests.support.unkey_server import ROOT_KEY, accepted
from tests.support.waiting import eventually

_CONTENTS = b"""
    SELECT
        (SELECT string_agg(managers::text, '|' ORDER BY manager_id) FROM stackmgr.managers),
        (SELECT string_agg(stacks::text, '|' ORDER BY stack_id) FROM stackmgr.stacks),
        (SELECT string_agg(stack_revisions::text, '|' ORDER BY revision_id) FROM stackmgr.stack_revisions),
        (SELECT string_agg(creation_receipts::text, '|' ORDER BY stack_id) FROM stackmgr.creation_receipts)
"""
_WAITS = b"SELECT count(*) FROM pg_stat_activity WHERE datname = current_catalog AND wait_event_type = 'Lock'"


@pytest.fixture
def unkey() -> Iterator[HttpServer]:
    with http_server() as server:
        yield server


@pytest.fixture
def tls_server(tmp_path, monkeypatch):
    def run(name: str, *, is_trusted: bool = True) -> AbstractContextManager[HttpServer]:
        authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert(name).configure_cert(context)
        if is_trusted:
            authority.cert_pem.write_to_path(tmp_path / "ca.pem")
            monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        return http_server(context=context)

    return run


@pytest.fixture
def circuit_stays_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every request be verified, however often Unkey fails."""
    monkeypatch.setattr(circuit_breaker, "FAILURES_TO_OPEN", 1_000_000)


@pytest.fixture
def make_endpoint() -> Iterator[Callable[..., Endpoint]]:
    made: list[Endpoint] = []
    yield lambda url, timeout=10.0: made.append(Endpoint(url, timeout=timeout)) or made[-1]
    for endpoint in made:  # a collection may end its sockets first
        endpoint._close_idle()


@pytest.fixture
def make_verifier(make_endpoint) -> Callable[..., UnkeyVerifier]:
    return lambda *where: UnkeyVerifier(make_endpoint(*where), Secret(ROOT_KEY))


@pytest.fixture
def make_unkey_client(client_with, make_verifier):
    def make(url: str, timeout: float = 10.0, external_id: str | None = None) -> Client:
        verifier = make_verifier(url, timeout)
        return client_with(f"key-{uuid4().hex}", external_id or str(uuid4()), verifier=verifier)

    return make


@pytest.fixture
def known(unkey: HttpServer, make_unkey_client) -> tuple[Client, str]:
    client = make_unkey_client(unkey.url)
    unkey.behave = respond(200, accepted(client.external_id, f"id_{client.external_id}"))
    stack_id: str = client.create(configuration()).json["id"]
    unkey.requests.clear()
    return client, stack_id


@pytest.fixture
def every_operation(known: tuple[Client, str], contents):
    """Return a function that asserts the status of each operation, by default of the known client's.

    No operation runs a statement or changes a row.
    """

    def check(status: int, client: Client | None = None, *, retry_after: str | None = None) -> None:
        client, before = client or known[0], contents()
        for send in (
            lambda: client.create(configuration(), key="another"),
            lambda: client.update(known[1], {"name": "Other"}),
            lambda: client.get(known[1]),
            client.page,
        ):
            response = send()
            assert response.status_int == status
            assert response.headers.get("Retry-After") == retry_after
            assert client.statements == []
        assert contents() == before

    return check


@pytest.fixture
def command(database_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setenv("STACKMGR_DATABASE_URL", database_url)
    return runner(monkeypatch, capsys)


@pytest.fixture
def issue(operator: Database):
    def issue(**options: Any) -> keys.IssuedKey:
        session = operator.session()
        return keys.create(session, str(uuid4()), **options)

    return issue


@pytest.fixture
def holder(app: Application, statements_run: list[str]) -> Callable[[str], Client]:
    return lambda key: Client(app, key.strip(), "", statements_run)


@pytest.fixture
def manager(client: Client, admin: psycopg.Connection) -> tuple[str, str]:
    for n in range(3):
        assert client.create(configuration(), key=f"key {n}").status_int == 201
    query = "SELECT manager_id::text FROM stackmgr.managers WHERE external_id = %s"
    return admin.execute(query, [client.external_id]).fetchone()[0], client.external_id


@pytest.fixture
def rows_of(admin: psycopg.Connection) -> Callable[[str], list[int]]:
    tables = ("stacks", "stack_revisions", "creation_receipts", "managers")
    queries = [f"SELECT count(*) FROM stackmgr.{table} WHERE manager_id = %s" for table in tables]
    return lambda manager_id: [admin.execute(query, [manager_id]).fetchone()[0] for query in queries]


@pytest.fixture
def until_one_waits(admin: psycopg.Connection) -> Callable[[], None]:
    return lambda: eventually(lambda: admin.execute(_WAITS).fetchone() == (1,))


@pytest.fixture
def erase_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait for requests: none is in progress, or the test waits for it."""
    monkeypatch.setattr(erasure, "LONGEST_REQUEST_SECONDS", 0)
    monkeypatch.setattr(erasure, "_PAUSE", 0)


@pytest.fixture
def contents(admin: psycopg.Connection) -> Callable[[], object]:
    return lambda: admin.execute(_CONTENTS).fetchone()
