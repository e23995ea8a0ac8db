"""Quotas: exactly N requests in any span of S seconds."""

import math
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import psycopg
import pytest

from stackmgr import paths
from stackmgr.access.verifiers.database import DatabaseVerifier
from stackmgr.operate.keys import Quota
from tests.support.client import Client

PEEK = (paths.directory("sql") / "api_key_quota_peek.sql").read_bytes()
CONSUME = (paths.directory("sql") / "api_key_quota_consume.sql").read_bytes()
QUOTA = b"SELECT quota_id FROM stackmgr.api_keys WHERE key_id = %s"
SLOTS = b"""
    SELECT slots.ctid FROM stackmgr.api_key_quota_slots AS slots
    JOIN stackmgr.api_keys USING (quota_id) WHERE key_id = %s
"""
AGE = b"""
    WITH queues AS (
        UPDATE stackmgr.api_key_quota_queues
        SET granted_at = ARRAY(SELECT unnest(granted_at) - %(passed)s * interval '1 us')
        WHERE quota_id = %(quota_id)s
    )
    UPDATE stackmgr.api_key_quota_slots SET granted_at = granted_at - %(passed)s * interval '1 us'
    WHERE quota_id = %(quota_id)s
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


SECOND, PERIOD, AHEAD = 1_000_000, 100_000_000, 60_000_000  # microseconds
STEPS = (1, SECOND // 2, PERIOD // 3, PERIOD - 1, PERIOD, 1 - AHEAD, -AHEAD, -AHEAD - 1, -3600 * SECOND)


@pytest.mark.parametrize("limit", [1, 3, 100, 101, 250])
def test_any_span_holds_the_quota(issue, admin, limit):
    """In one transaction, whose clock stands still.  Each slot has its grants, the oldest first."""
    slots = [deque([-math.inf] * ((limit - n) // 100 + 1)) for n in range(1, min(limit, 100) + 1)]
    key_id, now = issue(quota=Quota(limit, PERIOD // SECOND)).key_id, 0
    with admin.transaction(force_rollback=True):
        [(quota_id,)] = admin.execute(QUOTA, [key_id]).fetchall()
        for number, passed in product((1, limit // 2, limit + 1), STEPS):
            given = {"quota_id": quota_id, "quota_seconds": PERIOD // SECOND, "passed": passed}
            admin.execute(AGE, given)
            now += passed
            for _ in range(number):
                free = [slot for slot in slots if not now - PERIOD < slot[0] <= now + AHEAD]
                wait = None if free else -((now - PERIOD - min(slot[0] for slot in slots)) // SECOND)
                for statement in (PEEK, CONSUME):
                    assert admin.execute(statement, given).fetchone() == (bool(free), wait)
                for slot in free[:1]:
                    slot.popleft()
                    slot.append(now)


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
        admin.execute(TAKE_ALL_SLOTS_BUT_ONE, [free, key_id])
        assert statuses_at_once(client, 19) == {200: 19}
        given = {"quota_id": admin.execute(QUOTA, [key_id]).fetchone()[0], "quota_seconds": 60}
        assert other.execute(CONSUME, given).fetchone() == (True, None)  # the last one
        waiting = threads.submit(client.page)
        until_one_waits()
        other.commit()
    assert waiting.result().status_int == 429


def test_a_slot_that_another_request_takes_is_free_after_the_period(issue, admin, database_url):
    issued = issue(quota=Quota(1, 60))
    given = {"quota_id": admin.execute(QUOTA, [issued.key_id]).fetchone()[0], "quota_seconds": 60}
    with psycopg.connect(database_url) as other:
        other.execute(SLOTS + b"FOR UPDATE OF slots", [issued.key_id])
        assert admin.execute(CONSUME, given).fetchone() == (False, 60)


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
