"""A statement sent with the verification of its key has the same outcome as if it were sent alone.

Except where the connection is lost: of a write that was sent, nobody knows whether it took place.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from stackmgr.access import api_keys
from stackmgr.database import session
from stackmgr.database.connection import DatabaseConnection, Execution
from stackmgr.database.session import Caller, PrefetchHints, Session
from tests.database.service import DEADLINE, POOL_SIZE, Service, ends_within
from tests.support.examples import configuration
from tests.support.waiting import eventually

LOCK_TABLE = b"LOCK TABLE stackmgr.stacks IN ACCESS EXCLUSIVE MODE"
READS = {"get": "stack_get", "list": "stack_list"}
with_short_deadline = pytest.mark.parametrize("deadline", [DEADLINE])


@pytest.fixture
def warm(service: Service) -> Service:
    """A service that has seen the key: there is a prefetch hint for it, and the statements are prepared."""
    for _ in range(2 * POOL_SIZE):
        assert {service.operations()[name]() for name in ("get", "list", "update")} == {200}
        assert service.create_stack() == service.stack_id
    return service


@pytest.fixture(params=READS)
def read(request: pytest.FixtureRequest) -> str:
    return request.param


def test_a_connection_that_dies_during_both_statements_costs_one_retry(server, warm, login, watcher, read):
    with ThreadPoolExecutor() as threads, login.transaction():
        login.execute(LOCK_TABLE)
        status = threads.submit(warm.operations()[read])
        waiting = watcher.waiting_one()
        server.terminate_backend(waiting)
        eventually(lambda: waiting not in watcher.waiting())
    assert status.result() == 200
    assert warm.client.statements == 2 * ["api_key_verify", READS[read]]
    warm.assert_whole()


@with_short_deadline
def test_a_server_that_freezes_under_both_could_not_verify_the_key(server, warm, read):
    with server.frozen(), ends_within(DEADLINE):
        assert warm.operations()[read]() == 503
    warm.assert_whole()


@with_short_deadline
def test_a_read_that_fails_fails_after_a_verification_that_did_not(warm, login, read):
    with login.transaction():
        login.execute(LOCK_TABLE)
        with ends_within(DEADLINE):
            assert warm.operations()[read]() == 500
    assert warm.client.statements == 2 * ["api_key_verify", READS[read]]
    assert warm.operations()[read]() == 200
    warm.assert_whole()


def test_a_wrong_prefetch_returns_nothing_the_key_may_not_read(warm, make_service, login):
    other, key_digest = make_service(), api_keys.digest(warm.client.key)
    # The key changes its manager before each read, so that the prefetch is always for the manager before.
    for owner, path_id, status in (
        (other, warm.stack_id, 404),
        (warm, warm.stack_id, 200),
        (other, other.stack_id, 200),
        (warm, other.stack_id, 404),
    ):
        _give_key(login, key_digest, owner)
        assert warm.client.get(path_id).status_int == status
        assert warm.client.statements == ["api_key_verify", "stack_get", "stack_get"]
    for owner in (other, warm):
        _give_key(login, key_digest, owner)
        assert [item["id"] for item in warm.client.page().json["items"]] == [owner.stack_id]
        assert warm.client.statements == ["api_key_verify", "stack_list", "stack_list"]


def _give_key(login: psycopg.Connection, key_digest: bytes, owner: Service) -> None:
    login.execute(
        "UPDATE stackmgr.api_keys SET (external_id, identity_id) = (SELECT external_id, identity_id"
        " FROM stackmgr.managers WHERE external_id = %s::text::uuid) WHERE key_digest = %s",
        (owner.client.external_id, key_digest),
    )


def test_a_revoked_key_reads_nothing_though_the_rows_came_with_its_verification(warm, login):
    login.execute(b"UPDATE stackmgr.api_keys SET revoked_at = now()")
    for call in (lambda: warm.client.get(warm.stack_id), warm.client.page):
        assert call().status_int == 401
        assert warm.client.statements[0] == "api_key_verify"


def test_a_rejected_key_sends_afterwards_what_an_unknown_one_sends(warm, login, read):
    login.execute(b"UPDATE stackmgr.api_keys SET revoked_at = now()")
    for _ in range(2):
        assert warm.operations()[read]() == 401
    assert warm.client.statements == ["api_key_verify"]


@with_short_deadline
def test_a_read_that_is_not_prepared_yet_is_not_prefetched(service, login, read):
    assert service.operations()["update"]() == 200  # so that the verifier has seen the key
    with login.transaction():
        login.execute(LOCK_TABLE)
        with ends_within(DEADLINE):
            assert service.operations()[read]() == 500
    service.assert_whole()


def test_what_a_request_breaks_is_not_sent(warm, login):
    for call in (
        lambda: warm.client.get("no-id"),
        lambda: warm.client.page("limit=0"),
        lambda: warm.client.create({"name": ""}),
        lambda: warm.client.update("no-id", {"name": "x"}),
        lambda: warm.client.update(warm.stack_id, {}),
    ):
        assert call().status_int == 400
        assert warm.client.statements == ["api_key_verify"]
    login.execute(b"UPDATE stackmgr.api_keys SET revoked_at = now()")
    assert warm.client.create({"name": ""}).status_int == 401


WRITES = {"create": "stack_create", "update": "stack_update"}


@pytest.fixture(params=WRITES)
def write(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def written(warm: Service, login: psycopg.Connection) -> Callable[[], int]:
    """Return a function that returns how many revisions there are, of anybody."""

    def written() -> int:
        [(number,)] = login.execute(b"SELECT count(*) FROM stackmgr.stack_revisions").fetchall()
        return number

    return written


def test_a_write_of_a_known_key_is_sent_with_its_verification(warm, write, written, monkeypatch):
    monkeypatch.setattr(DatabaseConnection, "run", None)
    before = written()
    assert warm.operations()[write]() in (200, 201)
    assert warm.client.statements == ["api_key_verify", WRITES[write]]
    assert written() == before + 1


@pytest.mark.parametrize(
    "change",
    [
        b"revoked_at = now()",
        b"expires_at = now()",
        b"quota_id = gen_random_uuid(), quota_limit = 1, quota_seconds = 1",
        b"identity_id = 'another'",
        b"external_id = gen_random_uuid()",
    ],
)
def test_a_key_that_changes_after_its_verification_writes_nothing_ahead(  # noqa: PLR0913, PLR0917
    warm, write, written, login, monkeypatch, change
):
    """Between two statements of a round trip nobody can do anything: so the verification sees another key."""
    digest, twin = api_keys.digest(warm.client.key), uuid4().bytes * 2
    login.execute(
        b"INSERT INTO stackmgr.api_keys (key_digest, key_id, external_id, identity_id, last_four)"
        b" SELECT %s, gen_random_uuid(), external_id, identity_id, 'twin' FROM stackmgr.api_keys"
        b" WHERE key_digest = %s",
        (twin, digest),
    )
    login.execute(b"UPDATE stackmgr.api_keys SET %b WHERE key_digest = %%s" % change, (digest,))
    look_up, before = Session._look_up, written()

    def look_up_twin(session: Session, execution: Execution, *others: Any) -> Any:
        return look_up(session, execution._replace(values=[twin]), *others)

    monkeypatch.setattr(Session, "_look_up", look_up_twin)
    assert warm.operations()[write]() in (200, 201)
    statement = WRITES[write]
    assert warm.client.statements == ["api_key_verify", statement, statement]
    assert written() == before + 1


def test_a_binding_that_has_moved_to_another_manager_writes_nothing_ahead(warm, write, login):
    login.execute(b"UPDATE stackmgr.managers SET manager_id = gen_random_uuid()")
    assert warm.operations()[write]() == {"create": 201, "update": 404}[write]
    assert warm.client.statements == ["api_key_verify", WRITES[write], WRITES[write]]


def test_a_conflicting_binding_writes_nothing_ahead(warm, write, written, login):
    login.execute(b"UPDATE stackmgr.managers SET identity_id = manager_id::text")
    before = written()
    assert warm.operations()[write]() == 500
    assert written() == before


def test_a_connection_that_dies_under_a_write_leaves_its_outcome_unknown(server, warm, login, watcher, write):
    with ThreadPoolExecutor() as threads, login.transaction():
        login.execute(LOCK_TABLE)
        status = threads.submit(warm.operations()[write])
        server.terminate_backend(watcher.waiting_one())
        assert status.result() == 500
    assert warm.client.statements == ["api_key_verify", WRITES[write]]
    warm.assert_whole()


@with_short_deadline
def test_a_server_that_freezes_under_a_write_leaves_its_outcome_unknown(server, warm, write):
    with server.frozen(), ends_within(DEADLINE):
        assert warm.operations()[write]() == 500
    warm.assert_whole()


@with_short_deadline
def test_a_write_that_waits_for_too_long_is_sent_once(warm, login, write):
    with login.transaction():
        login.execute(LOCK_TABLE)
        with ends_within(DEADLINE):
            assert warm.operations()[write]() == 500
    assert warm.client.statements == ["api_key_verify", WRITES[write]]
    warm.assert_whole()


def test_a_key_with_a_quota_sends_no_write_ahead(warm, write, login):
    login.execute(
        b"UPDATE stackmgr.api_keys SET quota_id = gen_random_uuid(), quota_limit = 1, quota_seconds = 60"
    )
    assert warm.operations()["get"]() == 429  # it has no slot
    warm.operations()[write]()
    assert warm.client.statements == ["api_key_verify", "api_key_quota_consume"]


def test_what_finds_no_row_ahead_is_run_alone(warm):
    assert warm.client.update(str(uuid4()), {"name": "x"}).status_int == 404
    assert warm.client.statements == ["api_key_verify", "stack_update", "stack_update"]
    assert warm.client.create(configuration(), key="the one stack").status_int == 200
    assert warm.client.statements == ["api_key_verify", "stack_create", "stack_create", "receipt_find"]


def test_hints_are_bounded(monkeypatch):
    monkeypatch.setattr(session, "_MAX_HINTS", 2)
    hints = PrefetchHints()
    for known in "abc":
        hints.remember(known, Caller("manager", "identity", None))
    assert [hints.get(known) is not None for known in "abc"] == [False, False, True]
