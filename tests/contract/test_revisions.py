"""Revisions: complete, numbered, with the key and the request that made each.

No response shows them; the tests read the table.
"""

import json
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from stackmgr.access import api_keys
from stackmgr.operate import issued_keys
from stackmgr.operate.connection import reading
from tests.support.examples import ADDRESSES, allocation, configuration

READ = """
    SELECT revision_number, revision_id::text, name, allocation, preset, identity_id, request_id, key_id
    FROM stackmgr.stack_revisions WHERE stack_id = %s ORDER BY revision_number
"""


@pytest.fixture
def revisions(admin: psycopg.Connection):
    """Return a function that reads all revisions of a stack, oldest first."""
    return lambda stack_id: admin.cursor(row_factory=dict_row).execute(READ, [stack_id]).fetchall()


def as_returned(stack_id: str, revision: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": stack_id,
        "current_revision_id": revision["revision_id"],
        "name": revision["name"],
        "allocation": revision["allocation"],
        "schedule": {"preset": revision["preset"]},
    }


def test_every_revision_is_the_complete_configuration_that_was_returned(client, revisions, admin):
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
    assert [as_returned(stack_id, revision) for revision in saved] == returned
    assert [revision["revision_number"] for revision in saved] == [1, 2, 3, 4, 5, 6]
    assert len({revision["revision_id"] for revision in saved}) == 6
    current = "SELECT revision_number, revision_id::text FROM stackmgr.stacks WHERE stack_id = %s"
    assert admin.execute(current, [stack_id]).fetchall() == [(6, returned[-1]["current_revision_id"])]


def test_each_revision_names_the_identity_the_key_and_the_request_that_made_it(
    make_client, revisions, database_url
):
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
def test_the_record_keeps_255_characters_of_a_request_id_as_it_was_sent(client, revisions, request_id):
    created = client.create(configuration(), headers={"X-Request-Id": request_id})
    client.update(created.json["id"], {"name": "Second"}, {"X-Request-Id": request_id})
    assert [revision["request_id"] for revision in revisions(created.json["id"])] == [request_id[:255]] * 2


def test_a_failed_update_changes_neither_stack_nor_revisions(client, stack, rejected, revisions, admin):
    admin.execute(
        "ALTER TABLE stackmgr.stack_revisions ADD CONSTRAINT broken CHECK (name <> 'Bad') NOT VALID"
    )
    try:
        rejected(500, "internal_error", client.update, stack["id"], {"name": "Bad"})
    finally:
        admin.execute("ALTER TABLE stackmgr.stack_revisions DROP CONSTRAINT broken")
    assert client.get(stack["id"]).json == stack
    assert len(revisions(stack["id"])) == 1


def test_no_response_has_the_author_or_the_time_of_a_revision(client, revisions):
    created = client.create(configuration(), headers={"X-Request-Id": "the creation"})
    read = client.get(created.json["id"]).body.decode()
    recorded = json.dumps(revisions(created.json["id"]))
    for secret in (api_keys.identity_of(client.external_id), client.external_id, "the creation"):
        assert secret not in read
        assert secret in recorded
