"""Keys of the database verifier: their form, what is stored of one, rotation, and `stackmgr keys`."""

import hashlib
import itertools
import re
import string
import zlib
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from unittest.mock import Mock
from uuid import uuid4

import pytest

from stackmgr.access import api_keys
from stackmgr.access.credentials import Credential
from stackmgr.access.verifiers.database import DatabaseVerifier
from stackmgr.admission import Admission
from stackmgr.errors import DatabaseError, ServiceUnavailable
from stackmgr.operate import keys
from stackmgr.operate.keys import Quota
from stackmgr.operate.operator import operating
from stackmgr.reasons import ReasonSlug
from tests.support.server import running_service, send_request

BASE62 = string.digits + string.ascii_uppercase + string.ascii_lowercase
KEY = re.compile(r"stackmgr_[0-9A-Za-z]{38}\n")
UUID = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
ABANDONED = "SELECT sessions_abandoned FROM pg_stat_database WHERE datname = current_database()"


def test_only_the_digest_of_a_key_is_stored(issue, admin):
    issued_json = issue(label="canary")
    query = b"SELECT api_keys::text FROM stackmgr.api_keys WHERE label = 'canary'"
    (stored,) = admin.execute(query).fetchone()
    assert api_keys.digest(issued_json.key).hex() in stored
    for start in range(len(issued_json.key) - 8):
        assert issued_json.key[start : start + 8] not in stored.replace("stackmgr:", "")


def test_successor_inherits_all_but_the_secret(issue, holder, operator, database_url):
    expires_at = datetime.now(UTC) + timedelta(days=1)
    old = issue(label="robot", expires_at=expires_at, quota=Quota(5, 60))
    new = keys.rotate(operator.session(), old.key_id)
    with operating(database_url) as reader:
        record = keys.find(reader, new.key_id)
        predecessor = keys.find(reader, old.key_id)
    assert holder(old.key).page().status_int == 401
    assert holder(new.key).page().status_int == 200
    assert (record.label, record.expires_at, record.quota) == ("robot", expires_at, "5/60")
    assert (record.external_id, record.last_four) == (predecessor.external_id, new.key[-4:])
    assert predecessor.successor_id == new.key_id
    for said in (expires_at - timedelta(hours=1), expires_at + timedelta(hours=1)):
        new = keys.rotate(operator.session(), new.key_id, expires_at=said)
        assert new.expires_at == said


def test_both_keys_of_an_overlap_share_a_quota_and_none_lasts_longer(issue, holder, operator, admin):
    expires_at = datetime.now(UTC) + timedelta(seconds=30)
    short, long = issue(quota=Quota(3, 60)), issue(expires_at=expires_at)
    session = operator.session()
    rotated = keys.rotate(session, short.key_id, overlap_seconds=60)
    kept = keys.rotate(session, long.key_id, overlap_seconds=90)
    assert kept.predecessor_expires_at == expires_at
    statuses = [holder(key).page().status_int for key in (short.key, rotated.key) * 2]
    assert statuses == [200, 200, 200, 429]
    end = b"UPDATE stackmgr.api_keys SET expires_at = expires_at - interval '60 s' WHERE key_id = %s"
    admin.execute(end, [short.key_id])
    assert [holder(key).page().status_int for key in (short.key, rotated.key)] == [401, 429]


def test_of_two_rotations_at_once_one_succeeds(issue, operator, database_url, until_one_waits):
    issued_json = issue()
    with operating(database_url) as other, ThreadPoolExecutor() as threads:
        with other.transaction():
            assert keys.rotate(other, issued_json.key_id, overlap_seconds=60)
            waiting = threads.submit(keys.rotate, operator.session(), issued_json.key_id, overlap_seconds=60)
            until_one_waits()
        assert waiting.result(30) is None
    revoked = [keys.revoke(operator.session(), issued_json.key_id) for _ in range(2)]
    assert revoked[0] == revoked[1]


def test_key_with_anothers_hash_is_verified(issue, database, monkeypatch):
    monkeypatch.setattr("stackmgr.access.credentials.monotonic", itertools.count().__next__)
    admission, found = Admission(), []
    session = database.session()
    for issued_json in (issue(), issue()):
        credential = Credential(issued_json.key, session, DatabaseVerifier(), admission)
        credential.begin()
        found.append(credential.identity.key_id == issued_json.key_id)
        admission.remembered = credential.identity
    assert found == [True, True]
    credential._verify()
    assert credential.verifier_seconds == 2  # of both verifications


def test_a_database_that_fails_verifies_no_key():
    failing = Mock(side_effect=DatabaseError(ReasonSlug.DEADLINE))
    with pytest.raises(ServiceUnavailable, match=r"^database$"):
        DatabaseVerifier().verify(api_keys.generate(), Mock(row=failing, rows=failing))


def with_checksum(random_part):
    number = zlib.crc32(random_part.encode())
    places = [number // 62**power % 62 for power in (5, 4, 3, 2, 1, 0)]
    return "stackmgr_" + random_part + "".join(BASE62[place] for place in places)


def test_new_keys_have_the_published_form():
    made = {api_keys.generate() for _ in range(500)}
    assert len({key[9:41] for key in made}) == 500
    assert {character for key in made for character in key[9:41]} == set(BASE62)
    for key in made:
        assert re.fullmatch(r"stackmgr_[0-9A-Za-z]{38}", key)
        assert key == with_checksum(key[9:41])
        assert api_keys.is_well_formed(key)


GOOD = with_checksum("0123456789ABCDEFGHIJKLMNOPQRSTUV")


def test_every_single_wrong_character_is_noticed():
    for place in range(len(GOOD)):
        for character in BASE62 + "_-":
            wrong = GOOD[:place] + character + GOOD[place + 1 :]
            assert api_keys.is_well_formed(wrong) == (wrong == GOOD)


def test_another_text_is_no_key():
    for text in (
        *("", "stackmgr_", GOOD[:-1], GOOD + "0", GOOD + "\n", " " + GOOD, GOOD * 2, GOOD[9:], GOOD.upper()),
        GOOD.replace("stackmgr_", "stackmgr-"),
        *(GOOD.replace(*other) for other in (("1", "\u0661"), ("A", "\uff21"), ("0", "\0"))),
    ):
        assert not api_keys.is_well_formed(text), text
    assert api_keys.digest(GOOD) == hashlib.sha256(GOOD.encode()).digest()


@pytest.fixture
def issued_json(command):
    return command("keys", "issue", "--json", "--external-id", str(uuid4())).json


def test_issue_and_rotate_print_the_key_alone(command, holder, issued_json, monkeypatch):
    first = command("keys", "issue", "--external-id", str(uuid4()))
    successor = command("keys", "rotate", issued_json["key_id"], "--overlap", "0")
    for printed in (first, successor):
        assert printed.status == 0
        assert KEY.fullmatch(printed.out)
        assert re.fullmatch(rf"key id {UUID}\n", printed.err)
        assert holder(printed.out).page().status_int == 200
    assert holder(issued_json["key"]).page().status_int == 401
    monkeypatch.setattr("sys.stderr", None)  # as after 2>&-
    assert KEY.fullmatch(command("keys", "issue", "--external-id", str(uuid4())).out)


@pytest.mark.parametrize(("given", "printed"), [
    ("2999-01-31T00:00:00+02:00", "2999-01-30T22:00:00Z"), ("2999-01-31", "2999-01-31T00:00:00Z"),
    ("2999-01-31Z", "2999-01-31T00:00:00Z"),
])  # fmt: skip
def test_issue_for_scripts_prints_one_document(command, given, printed):
    issued_json = command("keys", "issue", "--json", "--external-id", str(uuid4()), "--expires-at", given)
    assert issued_json.err == ""
    assert issued_json.json.keys() == {"key", "key_id", "expires_at"}
    assert issued_json.json["expires_at"] == printed
    rotate = ("rotate", issued_json.json["key_id"], "--overlap", "31622400", "--expires-at", "2998-05-05")
    successor = command("keys", *rotate, "--json").json
    assert successor.keys() == {*issued_json.json, "predecessor_expires_at"}
    assert successor["expires_at"] == "2998-05-05T00:00:00Z"
    left = datetime.fromisoformat(successor["predecessor_expires_at"]) - datetime.now(UTC)
    assert timedelta(days=365, hours=23) < left <= timedelta(days=366)


def test_list_shows_everything_except_the_key(command):
    external_id, label = str(uuid4()), "robot äöü".ljust(200, "x")
    options = ("--quota", "10000/86400", "--label", label)
    key = command("keys", "issue", "--external-id", external_id, *options).out.strip()
    (record,) = command("keys", "list", "--json", "--external-id", external_id).json
    assert record.pop("key_id")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", record.pop("created_at"))
    assert record == {
        **dict.fromkeys(("expires_at", "revoked_at", "last_used_hour", "successor_id")),
        "external_id": external_id, "state": "valid", "last_four": key[-4:], "label": label,
        "quota": "10000/86400",
    }  # fmt: skip
    listed = command("keys", "list")
    assert key not in listed.out
    (line,) = (line for line in listed.out.splitlines() if external_id in line)
    assert line.split("\t")[2:4] == ["valid", key[-4:]]
    assert line.split("\t")[-3:] == ["10000/86400", "-", label]


def test_an_error_is_reported_in_one_line(command, issued_json, issue):
    key_id, unknown, expired = issued_json["key_id"], str(uuid4()), issue(expires_at=datetime.now(UTC)).key_id
    successor = command("keys", "rotate", key_id, "--json").json["key_id"]
    assert command("keys", "revoke", successor, "--json").json.keys() == {"key_id", "revoked_at"}
    for arguments, message in {
        ("revoke", unknown): f"no key has the id {unknown}: see 'stackmgr keys list'",
        ("rotate", unknown): f"no key has the id {unknown}: see 'stackmgr keys list'",
        ("rotate", key_id): f"key {key_id} was rotated before: rotate its successor {successor}",
        ("rotate", successor): f"key {successor} is revoked: issue another with 'stackmgr keys issue'",
        ("rotate", expired): f"key {expired} is expired: issue another with 'stackmgr keys issue'",
    }.items():
        result = command("keys", *arguments)
        assert (result.status, result.out, result.err) == (1, "", f"stackmgr: {message}\n")


def test_stop_writes_uses_and_closes_sessions(database_url, issue, admin):
    issued, before = issue(), admin.execute(ABANDONED).fetchone()
    headers, env = {"Authorization": f"Bearer {issued.key}"}, {"WEB_CONCURRENCY": "2"}
    with running_service(database_url, env=env) as service, ThreadPoolExecutor(8) as threads:
        listed = threads.map(lambda _: send_request(service.port, "/manager/stacks", headers)[0], range(40))
        assert {*listed} == {200}
        assert service.stop() == 0
    with operating(database_url) as reader:
        assert keys.find(reader, issued.key_id).last_used_hour is not None
    assert admin.execute(ABANDONED).fetchone() == before
