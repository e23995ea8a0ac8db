"""A read sent with the verification of its key: failures have the same outcome as if it were sent alone."""

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from stackmgr.access import api_keys
from tests.faults.service import DEADLINE, POOL_SIZE, Service, ends_within
from tests.support.examples import configuration
from tests.support.waiting import eventually

LOCK_TABLE = b"LOCK TABLE stackmgr.stacks IN ACCESS EXCLUSIVE MODE"
READS = {"get": "stack_get", "list": "stack_list"}
with_short_deadline = pytest.mark.parametrize("deadline", [DEADLINE])


@pytest.fixture
def warm(service: Service) -> Service:
    """A service that has seen the key: there is a prefetch hint for it, and the statements are prepared."""
    for _ in range(2 * POOL_SIZE):
        assert {service.operations()[name]() for name in READS} == {200}
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


def test_writes_and_rejected_reads_send_nothing_ahead(warm):
    assert warm.client.create(configuration()).status_int == 201
    assert warm.client.statements == ["api_key_verify", "stack_create"]
    assert warm.client.get("no-id").status_int == 400
    assert warm.client.statements == ["api_key_verify"]
    assert warm.client.page("limit=0").status_int == 400
    assert warm.client.statements == ["api_key_verify"]
