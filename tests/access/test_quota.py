"""Quotas: exactly N requests in any span of S seconds."""

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from stackmgr.access.verifiers.database import DatabaseVerifier
from stackmgr.operate.keys import Quota
from tests.support.client import Client

SLOTS = b"""
    SELECT slots.ctid FROM stackmgr.api_key_quota_slots AS slots
    JOIN stackmgr.api_keys USING (quota_id) WHERE key_id = %s
"""
AGE = b"""
    WITH age (seconds, quota_id) AS (
        SELECT make_interval(secs => %s), quota_id FROM stackmgr.api_keys WHERE key_id = %s
    ),
    queues AS (
        UPDATE stackmgr.api_key_quota_queues AS queues
        SET granted_at = ARRAY(SELECT unnest(granted_at) - seconds)
        FROM age WHERE queues.quota_id = age.quota_id
    )
    UPDATE stackmgr.api_key_quota_slots AS slots SET granted_at = granted_at - seconds
    FROM age WHERE slots.quota_id = age.quota_id
"""
TAKE_ALL_SLOTS_BUT_ONE = b"""
    WITH one AS (SELECT quota_id, %s::timestamptz AS free FROM stackmgr.api_keys WHERE key_id = %s),
    queue AS (
        UPDATE stackmgr.api_key_quota_queues AS queues SET granted_at = array_fill(free, ARRAY[20])
        FROM one WHERE queues.quota_id = one.quota_id AND slot = 50
    )
    UPDATE stackmgr.api_key_quota_slots AS slots SET granted_at = CASE slot WHEN 50 THEN free ELSE now() END
    FROM one WHERE slots.quota_id = one.quota_id
"""
REBIND = b"UPDATE stackmgr.managers SET identity_id = identity_id || '_new' WHERE external_id = %s"


@pytest.fixture
def limited(issue, holder):
    def make(limit: int, seconds: int) -> tuple[Client, str]:
        issued = issue(quota=Quota(limit, seconds))
        return holder(issued.key), issued.key_id

    return make


@pytest.mark.parametrize("limit", [101, 250])
def test_any_span_holds_the_quota(limited, admin, limit):
    (client, key_id), started = limited(limit, 100), time.monotonic()

    def let_pass(seconds: int) -> None:
        admin.execute(AGE, [seconds, key_id])

    def rejected_for(seconds: int) -> bool:
        left = int(client.page().headers["Retry-After"])
        return seconds - 1 - (time.monotonic() - started) <= left <= seconds

    assert client.page().status_int == 200
    let_pass(60)
    assert [client.page().status_int for _ in range(limit)] == [200] * (limit - 1) + [429]
    assert rejected_for(40)
    let_pass(40)
    assert [client.page().status_int for _ in range(2)] == [200, 429]
    assert rejected_for(60)
    let_pass(-3600)  # the clock is set back
    assert [client.page().status_int for _ in range(limit + 1)] == [200] * limit + [429]


def statuses_at_once(client: Client, number: int) -> Counter[int]:
    with ThreadPoolExecutor(8) as threads:
        return Counter(threads.map(lambda _: client.page().status_int, range(number)))


def test_requests_at_once_are_granted_exactly_the_quota(limited):
    client, _ = limited(30, 60)
    assert statuses_at_once(client, 120) == {200: 30, 429: 90}


@pytest.mark.parametrize("free", ["epoch", "2999-01-01"], ids=["old", "after a clock step"])
def test_requests_at_once_get_all_of_one_slot(limited, admin, free, database_url, until_one_waits):
    client, key_id = limited(2_000, 60)
    admin.execute(TAKE_ALL_SLOTS_BUT_ONE, [free, key_id])
    with ThreadPoolExecutor() as threads, psycopg.connect(database_url) as other:
        other.execute(SLOTS + b"AND slot = 50 FOR UPDATE OF slots", [key_id])
        waiting = threads.submit(client.page)
        until_one_waits()
        other.rollback()
    assert waiting.result().status_int == 200
    assert statuses_at_once(client, 60) == {200: 19, 429: 41}


def test_rebound_managers_request_counts_once(limited, admin, monkeypatch):
    client, _ = limited(3, 60)
    assert client.page().status_int == 200
    verify = DatabaseVerifier.verify

    def then_rebind(*arguments):
        identity = verify(*arguments)
        admin.execute(REBIND, [identity.external_id])
        return identity

    monkeypatch.setattr(DatabaseVerifier, "verify", then_rebind)
    assert client.page().status_int == 500
    assert client.statements.count("stack_list") == client.statements.count("api_key_quota_consume") == 1
