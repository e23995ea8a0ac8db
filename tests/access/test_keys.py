"""Keys of the database verifier: form, expiry, revocation, rotation."""

import re
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from stackmgr.access import api_keys
from stackmgr.access.credentials import Credential
from stackmgr.access.verifiers.database import DatabaseVerifier
from stackmgr.admission import Admission
from stackmgr.database.pool import Database
from stackmgr.http.app import create_app
from stackmgr.operate import issued_keys
from stackmgr.operate.issued_keys import Quota
from tests.support.client import Client
from tests.support.examples import configuration


@pytest.fixture
def issue(operator):
    """Return a function that issues a key, by default for a new manager."""

    def issue(external_id: str | None = None, **options):
        with operator.session() as session:
            return issued_keys.create(session, external_id or str(uuid4()), **options)

    return issue


@pytest.fixture
def holder(app, statements_run):
    """Return a function that makes a client with a given key."""
    return lambda key: Client(app, key, "", statements_run)


def test_a_key_has_the_published_form_and_190_random_bits():
    keys = {api_keys.generate() for _ in range(1000)}
    assert len({key[9:41] for key in keys}) == 1000
    for key in keys:
        assert re.fullmatch(r"stackmgr_[0-9A-Za-z]{38}", key)
        assert api_keys.is_well_formed(key)


def test_a_character_mistyped_or_swapped_is_rejected_without_a_query(issue, holder):
    key = issue().key
    mistyped = [key[:at] + ("x" if key[at] != "x" else "y") + key[at + 1 :] for at in range(len(key))]
    swapped = [key[:at] + key[at + 1] + key[at] + key[at + 2 :] for at in range(9, len(key) - 1)]
    for wrong in {*mistyped, *swapped, key[:-1], f"{key}0", key.upper(), key[9:]} - {key}:
        client = holder(wrong)
        assert client.page().status_int == 401
        assert client.statements == []


def test_only_the_digest_of_a_key_is_stored(issue, admin):
    issued = issue(label="canary")
    (stored,) = admin.execute(
        b"SELECT api_keys::text FROM stackmgr.api_keys WHERE label = 'canary'"
    ).fetchone()
    assert api_keys.digest(issued.key).hex() in stored
    for start in range(len(issued.key) - 8):
        assert issued.key[start : start + 8] not in stored.replace("stackmgr:", "")


def test_an_unlimited_key_costs_one_statement(issue, holder):
    client = holder(issue().key)
    client.create(configuration())
    assert client.statements == ["api_key_verify", "manager_find", "manager_insert", "stack_create"]
    client.page()
    assert client.statements == ["stack_list"]


@pytest.fixture
def let_expire(admin):
    """Return a function that moves the expiry of a key back by a number of seconds."""
    query = (
        b"UPDATE stackmgr.api_keys SET expires_at = expires_at - make_interval(secs => %s) WHERE key_id = %s"
    )
    return lambda key_id, seconds: admin.execute(query, [seconds, key_id])


def test_a_key_is_valid_until_it_expires(issue, holder, let_expire):
    issued = issue(expires_at=datetime.now(UTC) + timedelta(seconds=60))
    client = holder(issued.key)
    assert client.page().status_int == 200
    let_expire(issued.key_id, 60)
    assert client.page().status_int == 401


def test_a_revoked_key_is_rejected_from_the_next_request_and_keeps_its_first_revocation(
    issue, holder, operator
):
    issued = issue()
    client = holder(issued.key)
    assert client.page().status_int == 200
    with operator.session() as session:
        first = issued_keys.revoke(session, issued.key_id)
        assert client.page().status_int == 401
        assert issued_keys.revoke(session, issued.key_id) == first
        assert issued_keys.revoke(session, str(uuid4())) is None


def test_a_rotated_key_ends_at_once_and_its_successor_inherits_all_but_the_secret(issue, holder, operator):
    expires_at = datetime.now(UTC) + timedelta(days=1)
    old = issue(label="robot", expires_at=expires_at, quota=Quota(5, 60))
    with operator.session() as session:
        new = issued_keys.rotate(session, old.key_id)
        record = issued_keys.find(session, new.key_id)
        predecessor = issued_keys.find(session, old.key_id)
    assert holder(old.key).page().status_int == 401
    assert holder(new.key).page().status_int == 200
    assert (record.label, record.expires_at, record.quota) == ("robot", expires_at, "5/60")
    assert record.external_id == predecessor.external_id
    assert predecessor.successor_id == new.key_id


def test_during_the_overlap_both_keys_are_valid_and_share_one_quota(issue, holder, operator):
    old = issue(quota=Quota(3, 60))
    with operator.session() as session:
        new = issued_keys.rotate(session, old.key_id, overlap_seconds=60)
    statuses = [holder(key).page().status_int for key in (old.key, new.key, old.key, new.key)]
    assert statuses == [200, 200, 200, 429]


def test_an_overlap_is_limited_and_never_extends_the_life_of_a_key(issue, holder, operator, let_expire):
    expires_at = datetime.now(UTC) + timedelta(seconds=30)
    short, long = issue(), issue(expires_at=expires_at)
    with operator.session() as session:
        rotated = issued_keys.rotate(session, short.key_id, overlap_seconds=60)
        assert (
            issued_keys.rotate(session, long.key_id, overlap_seconds=90).predecessor_expires_at == expires_at
        )
    assert holder(short.key).page().status_int == 200
    let_expire(short.key_id, 60)
    assert holder(short.key).page().status_int == 401
    assert holder(rotated.key).page().status_int == 200


def test_a_key_that_has_ended_or_has_a_successor_cannot_be_rotated(issue, operator):
    revoked, expired, rotated = issue(), issue(expires_at=datetime.now(UTC)), issue()
    with operator.session() as session:
        issued_keys.revoke(session, revoked.key_id)
        assert issued_keys.rotate(session, rotated.key_id, overlap_seconds=60) is not None
        for key_id in (revoked.key_id, expired.key_id, rotated.key_id, str(uuid4())):
            assert issued_keys.rotate(session, key_id) is None


def test_of_two_rotations_at_once_one_succeeds(issue, operator):
    issued = issue()

    def rotate(_):
        with operator.session() as session:
            return issued_keys.rotate(session, issued.key_id, overlap_seconds=60)

    for _ in range(10):
        with ThreadPoolExecutor(2) as threads:
            successors = [new for new in threads.map(rotate, range(2)) if new is not None]
        assert len(successors) == 1
        issued = successors[0]


def test_without_the_database_no_key_is_accepted_or_rejected(spellings):
    database = Database("postgresql://127.0.0.1:1/none", pool_size=1)
    database.open()
    try:
        app = create_app(database=database, verifier=DatabaseVerifier(), spellings=spellings)
        assert Client(app, api_keys.generate(), "", []).page().status_int == 503
        assert Client(app, "mistyped", "", []).page().status_int == 401
    finally:
        database.close()


def test_a_key_that_has_the_hash_of_another_one_is_verified_itself(issue, database):
    admission, found = Admission(), []
    with database.session() as session:
        for issued in (issue(), issue()):
            credential = Credential(issued.key, session, DatabaseVerifier(), admission)
            credential.begin()
            found.append(credential.identity.key_id == issued.key_id)
            admission.remembered = credential.identity
    assert found == [True, True]
