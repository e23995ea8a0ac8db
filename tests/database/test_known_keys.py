"""The statement of a known key verifies the key itself: a row, or nothing read and written."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from uuid import UUID, uuid4

import psycopg
import pytest

from stackmgr.access import api_keys
from stackmgr.limits import BODY_LIMIT_BYTES
from stackmgr.stacks import cursor
from tests.database.subject import POOL_SIZE, Subject
from tests.support.examples import configuration
from tests.support.waiting import eventually

LOCK_TABLE = b"LOCK TABLE stackmgr.stacks IN ACCESS EXCLUSIVE MODE"
READS = {"get": "stack_get", "list": "stack_list"}
WRITES = {"create": "stack_create", "update": "stack_update"}
STATEMENTS = READS | WRITES
each_operation = pytest.mark.parametrize("name", STATEMENTS)


@pytest.fixture
def warm(subject: Subject) -> Subject:
    for _ in range(2 * POOL_SIZE):
        assert {subject.operations()[name]() for name in ("get", "list", "update")} == {200}
        assert subject.create_stack() == subject.stack_id
    return subject


@pytest.fixture
def written(admin: psycopg.Connection) -> Callable[[], int]:
    count = b"SELECT count(*) FROM stackmgr.stack_revisions"
    return lambda: admin.execute(count).fetchone()[0]


def test_statements_of_retries_and_misses(warm):
    assert warm.client.create(configuration(), key="the one stack").status_int == 200
    assert warm.client.statements == ["stack_create", "receipt_find"]
    assert warm.client.update(str(uuid4()), {"name": "x"}).status_int == 404
    assert warm.client.statements == ["stack_update"]
    assert warm.client.get(str(uuid4())).status_int == 404
    assert warm.client.statements == ["stack_get"]
    end = cursor.encode(cursor.Position(datetime(2000, 1, 1, tzinfo=UTC), UUID(int=0)))
    assert warm.client.page(f"cursor={end}").json["items"] == []
    assert warm.client.statements == ["stack_list"]
    warm.client.key = api_keys.generate()
    assert warm.operations()["get"]() == 401
    assert warm.client.statements == ["api_key_verify"]


@each_operation
@pytest.mark.parametrize(("change", "status"), [
    (b"revoked_at = now()", 401), (b"expires_at = now()", 401),
    (b"quota_id = gen_random_uuid(), quota_limit = 1, quota_seconds = 1", 429),  # it has no slot
    (b"external_id = id, identity_id = id FROM gen_random_uuid() AS id", None),  # as the new manager's
    (b"identity_id = 'another'", 500), (b"external_id = gen_random_uuid()", 500),
])  # fmt: skip
def test_a_key_that_has_changed_does_nothing_as_it_was(warm, written, admin, name, change, status):
    key_digest, before = api_keys.digest(warm.client.key), written()
    status = status or {"create": 201, "list": 200}.get(name, 404)
    admin.execute(b"UPDATE stackmgr.api_keys SET %b WHERE key_digest = %%s" % change, (key_digest,))
    assert warm.operations()[name]() == status
    assert warm.client.statements[:2] == [STATEMENTS[name], "api_key_verify"]
    rejected = {401: "unauthorized", 429: "rate_limited"}.get(status)
    assert {line["verifier"] for line in warm.lines} == {"accepted", rejected or "accepted"}
    if rejected:
        assert warm.operations()[name]() == status
        assert written() == before


@pytest.mark.parametrize("call", [
    lambda warm: warm.client.get("no-id"), lambda warm: warm.client.page("limit=0"),
    lambda warm: warm.client.create({"name": ""}),
    lambda warm: warm.client.create({"name": "x" * BODY_LIMIT_BYTES}),
    lambda warm: warm.client.update("no-id", {"name": "x"}),
    lambda warm: warm.client.update(warm.stack_id, {}),
])  # fmt: skip
def test_what_a_request_breaks_is_not_sent(warm, admin, call):
    assert call(warm).status_int in (400, 413)
    assert warm.client.statements == ["api_key_verify"]
    admin.execute(b"UPDATE stackmgr.api_keys SET revoked_at = now()")
    assert call(warm).status_int == 401


@each_operation
def test_only_a_read_whose_connection_dies_is_sent_again(server, warm, written, admin, watcher, name, causes):
    before = written()
    with ThreadPoolExecutor() as threads, admin.transaction():
        admin.execute(LOCK_TABLE)
        status = threads.submit(warm.operations()[name])
        waiting = watcher.waiting_one()
        server.terminate_backend(waiting)
        eventually(lambda: waiting not in watcher.waiting())
    assert status.result() == (500 if name in WRITES else 200)
    assert warm.client.statements == [STATEMENTS[name]] * (1 if name in WRITES else 2)
    assert causes() == [f"DatabaseError rejected {STATEMENTS[name]} 57P01"] * (name in WRITES)
    assert written() == before
    warm.assert_complete()
