"""The Idempotency-Key: valid keys, equal keys, and which requests store a receipt."""

import json
import random

import psycopg
import pytest

from stackmgr.database.session import Session
from tests.support.client import STACKS
from tests.support.examples import ADDRESSES, CHANGED, allocation, configuration

BODY = json.dumps(configuration()).encode()
# What a B-tree page leaves for the text beside the manager's id; see creation_receipts.
LONGEST_KEY = 2676
KEYS_OF_BYTES = {
    "one character": lambda length: "k" * length,
    "random characters": lambda length: random.Random(4663).randbytes(length).hex()[:length],  # noqa: S311
    # Each is two bytes in the database's UTF-8.
    "Latin-1 characters": lambda length: "\xe9" * (length // 2) + "k" * (length % 2),
}


@pytest.mark.parametrize(
    "key", [None, "", " ", "\t", " \t  ", "\xa0", "\x85", " \xa0\x85 "], ids=lambda key: f"{key!a}"
)
def test_a_create_needs_a_key(client, rejected, key):
    rejected(400, "invalid_request", client.request, "POST", STACKS, BODY, {"Idempotency-Key": key})


# Each of these some reading or other would take for blank, or for another one's equal.
KEYS = [
    *("abc", "ABC", '"abc"', "'abc'", "abc,abc", "abc, abc", "abc%20", "abc\xa0", "ab\tc", "ab c", "ab  c"),
    *("abc/", "\xe5bc", "\xc5bc", "a\xadbc", "\xc3\xa5bc", "\xdf", "ss", "1", "01", "1.0"),
    *("k", "0", '"', '""', ",", "null", "%00", "\xe9", "\xa0k\xa0", "\xff", "' OR 1=1 --"),
]


def test_any_text_is_a_key_compared_exactly(client):
    ids = {key: client.create(configuration(), key).json["id"] for key in KEYS}
    assert len(set(ids.values())) == len(KEYS)
    for key, stack_id in ids.items():
        retried = client.create(configuration(), key)
        assert (retried.status_int, retried.json["id"]) == (200, stack_id)


# What a normalization would take for the same input.
OTHER_INPUTS = [
    *({"name": name} for name in ("growth", "Growth ", " Growth", "Growth\u200b", 'Growth","weekly')),
    *({"allocation": allocation((ADDRESSES[1], 6000), (token, 4000))} for token in ADDRESSES[2:4]),
    {"allocation": allocation((ADDRESSES[1], 5999), (ADDRESSES[0], 4001))},
    *({field: value} for field, value in CHANGED.items()),
]


def test_other_input_is_a_conflict(client, rejected):
    created = client.create(configuration(), "key").json
    for changed in OTHER_INPUTS:
        rejected(409, "conflict", client.create, configuration(**changed), "key")
    assert client.get(created["id"]).json == created


def test_a_receipt_never_expires(client, rejected, admin: psycopg.Connection):
    created = client.create(configuration(), "key").json
    age = """
        UPDATE stackmgr.creation_receipts SET created_at = '1970-01-01T00:00:00Z'
        WHERE stack_id = %s RETURNING encode(input_digest, 'hex')
    """
    # The digest that sha256sum makes of the input, written out by hand: its form does not expire either.
    digest = "8979fabe72fc3b8900ae1577f03873889efcd70d9335124254ef1d5817d09527"
    assert admin.execute(age, [created["id"]]).fetchall() == [(digest,)]
    rejected(409, "conflict", client.create, configuration(name="Another"), "key")
    retried = client.create(configuration(), "key")
    assert (retried.status_int, retried.json) == (200, created)


# Uses up the key for a stack that this manager has created, with its input.
USE_KEY = """
    INSERT INTO stackmgr.creation_receipts (manager_id, idempotency_key, input_digest, stack_id)
    SELECT manager_id, 'key', input_digest, stack_id FROM stackmgr.creation_receipts WHERE stack_id = %s
"""


@pytest.mark.parametrize(("end", "name", "status"), [
    ("commit", "Growth", 200), ("commit", "Another", 409), ("rollback", "Growth", 201),
])  # fmt: skip
def test_a_create_waits_for_its_rival(client, stack, admin, other, end, name, status):
    other.execute(USE_KEY, [stack["id"]])
    wanted, end = configuration(name=name), getattr(other, end)
    response = other.ended_before(client.create, wanted, "key", watcher=admin, end=end)
    assert response.status_int == status
    assert len(client.page().json["items"]) == (2 if status == 201 else 1)
    if status == 200:
        assert response.json == stack


def test_a_receipt_that_vanishes_meanwhile_is_named(client, client_with, admin, monkeypatch):
    lines, rows = [], Session.rows
    again = client_with(client.key, observers=[lines.append])
    stack = client.create(configuration(), "key").json

    def run(session, statement, parameters, **rest):
        found = rows(session, statement, parameters, **rest)
        if statement.name == "stack_create":
            admin.execute("DELETE FROM stackmgr.creation_receipts WHERE stack_id = %s", [stack["id"]])
        return found

    monkeypatch.setattr(Session, "rows", run)
    assert (again.create(configuration(), "key").status_int, lines[0]["reason"]) == (500, "receipt_vanished")


@pytest.mark.parametrize("key_of", KEYS_OF_BYTES.values(), ids=KEYS_OF_BYTES)
def test_the_longest_key_is_counted_in_bytes(client, rejected, key_of):
    client.page()
    for length in (LONGEST_KEY + 1, 2700, 8191, 100_000):
        for _ in range(2):
            too_long = rejected(400, "invalid_request", client.create, configuration(), key_of(length))
            assert too_long.json["message"] == "The Idempotency-Key header is missing, blank or too long."
    longest = key_of(LONGEST_KEY)
    assert [client.create(configuration(), longest).status_int for _ in range(2)] == [201, 200]


def test_a_retry_needs_a_listed_token(client_with, spellings, client, rejected):
    wanted = configuration(allocation=allocation((ADDRESSES[0], 10000)))
    created = client.create(wanted, "key")
    shrunk = {spelling: address for spelling, address in spellings.items() if address != ADDRESSES[0]}
    later = client_with(client.key, spellings=shrunk)
    rejected(400, "invalid_request", later.create, wanted, "key")
    assert later.get(created.json["id"]).json == created.json
    assert later.update(created.json["id"], {"name": "New"}).json["allocation"] == created.json["allocation"]
