"""Updates: supplied fields replace, omitted ones stay, and each update appends a complete revision."""

import itertools
import json
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from psycopg.rows import dict_row

from stackmgr.access import api_keys
from stackmgr.operate import issued_keys
from stackmgr.operate.connection import reading
from tests.support.examples import (
    ADDRESSES,
    CHANGED,
    COLUMN_NAMES,
    COLUMN_VALUES,
    CONFIGURATION,
    allocation,
    configuration,
    from_columns,
    stored,
)

NEW = CHANGED | {"allocation": CHANGED["allocation"][::-1]}

COMBINATIONS = [fields for count in range(len(NEW)) for fields in itertools.combinations(NEW, count + 1)]


@pytest.mark.parametrize("fields", COMBINATIONS, ids="+".join)
@pytest.mark.parametrize("values", [(NEW, CHANGED), (CONFIGURATION, {})], ids=["new", "current"])
def test_supplied_fields_are_replaced(client, stack, row_counts, values, fields):
    new, saved = values
    before = row_counts()
    updated = client.update(stack["id"], {field: new[field] for field in fields})
    assert updated.status_int == 200
    assert row_counts() == before | {"stack_revisions": before["stack_revisions"] + 1}
    assert updated.json == stack | {field: saved.get(field, stack[field]) for field in fields} | {
        "current_revision_id": updated.json["current_revision_id"]
    }
    assert updated.json["current_revision_id"] != stack["current_revision_id"]
    read = client.get(stack["id"])
    assert (read.body, read.headers["ETag"]) == (updated.body, updated.headers["ETag"])
    assert client.page().json["items"] == [updated.json]


def test_an_update_changes_no_other_stack(client, stack):
    other = client.create(configuration(name="Other")).json
    updated = client.update(other["id"], NEW).json
    assert client.page().json["items"] == [updated, stack]


RIVALS = configuration(
    name="Rival's", allocation=allocation((ADDRESSES[9], 10000)), schedule={"preset": "monthly"}
)


@pytest.mark.parametrize("fields", COMBINATIONS, ids="+".join)
def test_an_update_waits_for_its_rival(client, stack, admin, other, fields):
    update = f"UPDATE stackmgr.stacks SET ({COLUMN_NAMES}) = ({COLUMN_VALUES}) WHERE stack_id = %(stack_id)s"
    saved = stored(RIVALS)._asdict() | {"stack_id": stack["id"]}
    for end, base in ((other.rollback, stack), (other.commit, stack | RIVALS)):
        other.execute(update, saved)
        with ThreadPoolExecutor(1) as thread:
            response = thread.submit(client.update, stack["id"], {field: NEW[field] for field in fields})
            other.wait_until_waited_for(admin)
            end()
        updated = response.result().json
        revision = {"current_revision_id": updated["current_revision_id"]}
        assert updated == base | {field: CHANGED[field] for field in fields} | revision
        assert client.get(stack["id"]).json == updated


READ = "SELECT * FROM stackmgr.stack_revisions WHERE stack_id = %s ORDER BY revision_number"


@pytest.fixture
def revisions(admin: psycopg.Connection):
    """Return a function that reads all revisions of a stack, oldest first."""
    return lambda stack_id: admin.cursor(row_factory=dict_row).execute(READ, [stack_id]).fetchall()


def test_a_revision_is_complete(client, revisions, admin):
    stack = client.create(configuration()).json
    returned, stack_id = [stack], stack["id"]
    for changes in (
        {"name": "Second"},
        {"schedule": {"preset": "daily"}},
        {"allocation": allocation((ADDRESSES[4], 10000))},
        {"name": "Second"},
        configuration(),
    ):
        earlier = revisions(stack_id)
        returned.append(client.update(stack_id, changes).json)
        assert revisions(stack_id)[:-1] == earlier
    saved = revisions(stack_id)
    assert [
        from_columns(revision) | {"id": stack_id, "current_revision_id": str(revision["revision_id"])}
        for revision in saved
    ] == returned
    assert [revision["revision_number"] for revision in saved] == [1, 2, 3, 4, 5, 6]
    assert len({revision["revision_id"] for revision in saved}) == 6
    current = "SELECT revision_number, revision_id::text FROM stackmgr.stacks WHERE stack_id = %s"
    assert admin.execute(current, [stack_id]).fetchall() == [(6, returned[-1]["current_revision_id"])]


def test_a_revision_names_its_author(make_client, revisions, database_url):
    first = make_client()
    second = make_client(first.external_id)
    stack_id = first.create(configuration(), headers={"X-Request-Id": "the creation"}).json["id"]
    unnamed = second.update(stack_id, {"name": "Second"}).headers["X-Request-Id"]
    with reading(database_url) as reader:
        ids = {key.last_four: key.key_id for key in issued_keys.list_all(reader, first.external_id)}
    assert [(each["request_id"], each["key_id"], each["identity_id"]) for each in revisions(stack_id)] == [
        (request_id, ids[client.key[-4:]], api_keys.identity_of(first.external_id))
        for request_id, client in (("the creation", first), (unnamed, second))
    ]


@pytest.mark.parametrize(
    "request_id", ["\xe9\xff\x80", "%s %(name)s", "'\"\\", "a,b", "r" * 6000, "\xe9" * 6000], ids=range(6)
)
def test_a_record_has_255_characters_of_an_id(client, revisions, request_id):
    created = client.create(configuration(), headers={"X-Request-Id": request_id})
    client.update(created.json["id"], {"name": "Second"}, {"X-Request-Id": request_id})
    assert [revision["request_id"] for revision in revisions(created.json["id"])] == [request_id[:255]] * 2


def test_a_failed_update_changes_nothing(client, stack, rejected, revisions, admin):
    admin.execute(
        "ALTER TABLE stackmgr.stack_revisions ADD CONSTRAINT broken CHECK (name <> 'Bad') NOT VALID"
    )
    try:
        rejected(500, "internal_error", client.update, stack["id"], {"name": "Bad"})
    finally:
        admin.execute("ALTER TABLE stackmgr.stack_revisions DROP CONSTRAINT broken")
    assert client.get(stack["id"]).json == stack
    assert len(revisions(stack["id"])) == 1


def test_no_response_has_an_author(client, revisions):
    created = client.create(configuration(), headers={"X-Request-Id": "the creation"})
    read = client.get(created.json["id"]).body.decode()
    recorded = json.dumps(revisions(created.json["id"]), default=str)
    for secret in (api_keys.identity_of(client.external_id), client.external_id, "the creation"):
        assert secret not in read
        assert secret in recorded
