"""Quotas: at most N requests in any span of S seconds, and not one fewer."""

from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest

from stackmgr import api_keys
from stackmgr.api_keys import Quota
from tests.support.client import Client
from tests.support.examples import configuration

SLOTS = b"""
    SELECT slots.ctid FROM stackmgr.api_key_quota_slots AS slots
    JOIN stackmgr.api_keys USING (quota_id) WHERE key_id = %s
"""
AGE = b"""
    UPDATE stackmgr.api_key_quota_slots SET granted_at = granted_at - make_interval(secs => %s)
    WHERE quota_id = (SELECT quota_id FROM stackmgr.api_keys WHERE key_id = %s)
"""
SIZES = b"""
    SELECT pg_relation_size('stackmgr.api_key_quota_slots'),
        pg_relation_size('stackmgr.api_key_quota_slots_pkey')
"""


@pytest.fixture
def limited(app, operator, statements_run):
    """Return a function that makes a client whose key has the given quota, and that key's id."""

    def limited(limit: int, seconds: int) -> tuple[Client, str]:
        with operator.session() as session:
            issued = api_keys.create(session, str(uuid4()), quota=Quota(limit, seconds))
        return Client(app, issued.key, "", statements_run), issued.key_id

    return limited


@pytest.fixture
def let_pass(admin):
    """Return a function that puts what a quota has granted some seconds further into the past."""
    return lambda key_id, seconds: admin.execute(AGE, [seconds, key_id])


def test_over_the_quota_a_request_is_rate_limited_and_changes_nothing(limited):
    client, _ = limited(3, 60)
    assert client.create(configuration(), key="one").status_int == 201
    assert client.statements[:2] == ["api_key_verify", "api_key_quota_spend"]
    assert len(client.page().json["items"]) == 1
    assert client.statements == ["api_key_verify", "api_key_quota_spend", "stack_list"]
    client.page()
    refused = client.create(configuration(), key="two")
    assert refused.status_int == 429
    assert 55 <= int(refused.headers["Retry-After"]) <= 60
    assert client.statements == ["api_key_verify", "api_key_quota_spend"]


def test_any_span_holds_what_the_quota_allows_and_retry_after_is_when_the_next_is_granted(limited, let_pass):
    client, key_id = limited(5, 100)
    assert client.page().status_int == 200
    let_pass(key_id, 60)
    assert [client.page().status_int for _ in range(5)] == [200, 200, 200, 200, 429]
    assert 35 <= int(client.page().headers["Retry-After"]) <= 40
    let_pass(key_id, 40)
    assert [client.page().status_int for _ in range(2)] == [200, 429]
    assert 55 <= int(client.page().headers["Retry-After"]) <= 60


def test_requests_at_once_are_granted_exactly_the_quota(limited):
    client, _ = limited(30, 60)
    with ThreadPoolExecutor(8) as threads:
        statuses = list(threads.map(lambda _: client.page().status_int, range(120)))
    assert statuses.count(200) == 30
    assert statuses.count(429) == 90


def test_a_request_that_fails_was_verified_and_counts(limited):
    client, _ = limited(3, 60)
    assert client.get("no-uuid").status_int == 400
    assert client.get(str(uuid4())).status_int == 404
    assert client.create(b"no json").status_int == 400
    assert client.page().status_int == 429


def test_a_refused_request_writes_nothing(limited, admin):
    client, key_id = limited(2, 60)
    assert [client.page().status_int for _ in range(2)] == [200, 200]
    before = admin.execute(SLOTS, [key_id]).fetchall()
    assert client.page().status_int == 429
    assert admin.execute(SLOTS, [key_id]).fetchall() == before


def test_every_key_has_a_quota_of_its_own(limited):
    assert [limited(1, 60)[0].page().status_int for _ in range(2)] == [200, 200]


def test_a_quota_in_use_does_not_grow(limited, let_pass, admin):
    client, key_id = limited(20, 10)
    before = admin.execute(SIZES).fetchone()
    for _ in range(50):
        assert {client.page().status_int for _ in range(20)} == {200}
        let_pass(key_id, 10)
    table, index = admin.execute(SIZES).fetchone()
    # Updates stay in the page: the index, which would see any that did not, is as it was.
    assert index == before[1]
    assert table <= before[0] + 3 * 8192
