"""Keys of the database verifier: what is stored of one, and its rotation."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from uuid import uuid4

from stackmgr.access import api_keys
from stackmgr.access.credentials import Credential
from stackmgr.access.verifiers.database import DatabaseVerifier
from stackmgr.admission import Admission
from stackmgr.operate import issued_keys
from stackmgr.operate.connection import operating
from stackmgr.operate.issued_keys import Quota


def test_only_the_digest_of_a_key_is_stored(issue, admin):
    issued = issue(label="canary")
    query = b"SELECT api_keys::text FROM stackmgr.api_keys WHERE label = 'canary'"
    (stored,) = admin.execute(query).fetchone()
    assert api_keys.digest(issued.key).hex() in stored
    for start in range(len(issued.key) - 8):
        assert issued.key[start : start + 8] not in stored.replace("stackmgr:", "")


def test_a_rotated_key_ends_at_once_and_its_successor_inherits_all_but_the_secret(
    issue, holder, operator, database_url
):
    expires_at = datetime.now(UTC) + timedelta(days=1)
    old = issue(label="robot", expires_at=expires_at, quota=Quota(5, 60))
    with operator.session() as session:
        new = issued_keys.rotate(session, old.key_id)
    with operating(database_url) as reader:
        record = issued_keys.find(reader, new.key_id)
        predecessor = issued_keys.find(reader, old.key_id)
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


def test_an_overlap_ends_and_never_extends_the_life_of_a_key(issue, holder, operator, admin):
    expires_at = datetime.now(UTC) + timedelta(seconds=30)
    short, long = issue(), issue(expires_at=expires_at)
    with operator.session() as session:
        rotated = issued_keys.rotate(session, short.key_id, overlap_seconds=60)
        kept = issued_keys.rotate(session, long.key_id, overlap_seconds=90)
    assert kept.predecessor_expires_at == expires_at
    assert holder(short.key).page().status_int == 200
    end = b"UPDATE stackmgr.api_keys SET expires_at = expires_at - interval '60 s' WHERE key_id = %s"
    admin.execute(end, [short.key_id])
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


def test_a_key_that_has_the_hash_of_another_one_is_verified_itself(issue, database):
    admission, found = Admission(), []
    with database.session() as session:
        for issued in (issue(), issue()):
            credential = Credential(issued.key, session, DatabaseVerifier(), admission)
            credential.begin()
            found.append(credential.identity.key_id == issued.key_id)
            admission.remembered = credential.identity
    assert found == [True, True]
