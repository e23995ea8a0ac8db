"""Updating a stack: supplied fields replace, omitted ones stay, each update adds a revision."""

import itertools
import json
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest

from tests.support.client import STACKS
from tests.support.examples import ADDRESSES, CONFIGURATION, allocation, configuration

NEW = {
    "name": " Income ",
    "allocation": allocation((ADDRESSES[7], 2500), (ADDRESSES[3], 0), (ADDRESSES[5], 7500)),
    "schedule": {"preset": "hourly"},
}
SAVED = NEW | {"allocation": allocation((ADDRESSES[3], 0), (ADDRESSES[5], 7500), (ADDRESSES[7], 2500))}

COMBINATIONS = [
    fields
    for count in (1, 2, 3)
    for fields in itertools.combinations(("name", "allocation", "schedule"), count)
]


@pytest.mark.parametrize("fields", COMBINATIONS, ids="+".join)
def test_supplied_fields_are_replaced_and_omitted_ones_kept(client, stack, fields):
    updated = client.update(stack["id"], {field: NEW[field] for field in fields})
    assert updated.status_int == 200
    assert updated.json == stack | {field: SAVED[field] for field in fields} | {
        "current_revision_id": updated.json["current_revision_id"]
    }
    assert updated.json["current_revision_id"] != stack["current_revision_id"]
    read = client.get(stack["id"])
    assert (read.body, read.headers["ETag"]) == (updated.body, updated.headers["ETag"])
    assert client.page().json["items"] == [updated.json]


@pytest.mark.parametrize("fields", COMBINATIONS, ids="+".join)
def test_repeating_current_values_is_an_update_all_the_same(client, stack, row_counts, fields):
    before = row_counts()
    updated = client.update(stack["id"], {field: CONFIGURATION[field] for field in fields})
    assert updated.status_int == 200
    assert updated.json == stack | {"current_revision_id": updated.json["current_revision_id"]}
    assert updated.json["current_revision_id"] != stack["current_revision_id"]
    assert row_counts() == before | {"stack_revisions": before["stack_revisions"] + 1}


def test_an_update_takes_one_statement(client, stack):
    for stack_id in (stack["id"], str(uuid4())):
        client.update(stack_id, NEW)
        assert client.statements == ["stack_update"]


def test_an_allocation_is_replaced_completely(client, stack):
    updated = client.update(stack["id"], {"allocation": allocation((ADDRESSES[0], 10000))})
    assert updated.json["allocation"] == allocation((ADDRESSES[0], 10000))


def test_updates_one_after_the_other_add_up(client, stack):
    entity_tags = {client.get(stack["id"]).headers["ETag"]}
    for field, value in NEW.items():
        entity_tags.add(client.update(stack["id"], {field: value}).headers["ETag"])
    assert len(entity_tags) == 4
    current = client.get(stack["id"]).json
    assert {field: current[field] for field in SAVED} == SAVED


def test_the_same_update_sent_twice_is_two_updates(client, stack, row_counts):
    before = row_counts()["stack_revisions"]
    first, second = (client.update(stack["id"], NEW) for _ in range(2))
    assert first.headers["ETag"] != second.headers["ETag"]
    assert row_counts()["stack_revisions"] == before + 2


RIVALS = {
    "name": "Rival's",
    "allocation": allocation((ADDRESSES[9], 10000)),
    "schedule": {"preset": "monthly"},
}


@pytest.mark.parametrize("fields", COMBINATIONS, ids="+".join)
def test_an_update_waits_for_a_rival_and_keeps_what_it_does_not_supply_itself(
    client, stack, admin, other, fields
):
    saved = (RIVALS["name"], json.dumps(RIVALS["allocation"], separators=(",", ":")), "monthly", stack["id"])
    for end, base in ((other.rollback, stack), (other.commit, stack | RIVALS)):
        other.execute(
            "UPDATE stackmgr.stacks SET name = %s, allocation = %s, preset = %s WHERE stack_id = %s", saved
        )
        with ThreadPoolExecutor(1) as thread:
            response = thread.submit(client.update, stack["id"], {field: NEW[field] for field in fields})
            other.wait_until_waited_for(admin)
            end()
        updated = response.result().json
        revision = {"current_revision_id": updated["current_revision_id"]}
        assert updated == base | {field: SAVED[field] for field in fields} | revision
        assert client.get(stack["id"]).json == updated


def test_an_update_touches_no_other_stack(client, stack):
    other = client.create(configuration()).json
    client.update(stack["id"], NEW)
    assert client.get(other["id"]).json == other


def test_an_update_moves_its_stack_to_no_other_place_in_the_list(client):
    ids = [client.create(configuration()).json["id"] for _ in range(3)]
    for stack_id in ids:
        client.update(stack_id, NEW)
    assert [item["id"] for item in client.page().json["items"]] == ids[::-1]


@pytest.mark.parametrize(
    "headers",
    [
        {"If-Match": '"00000000-0000-4000-8000-000000000000"'},
        {"If-Match": "*"},
        {"If-None-Match": "*"},
        {"If-Unmodified-Since": "Thu, 01 Jan 1970 00:00:00 GMT"},
    ],
    ids="".join,
)
def test_conditions_are_not_enforced(client, stack, headers):
    assert client.update(stack["id"], {"name": "New"}, headers).json["name"] == "New"


def test_an_outdated_entity_tag_does_not_prevent_an_update(client, stack):
    client.update(stack["id"], {"name": "Second"})
    late = client.update(stack["id"], {"name": "Late"}, {"If-Match": f'"{stack["current_revision_id"]}"'})
    assert (late.status_int, late.json["name"]) == (200, "Late")


def test_the_id_in_the_path_may_be_written_in_capitals(client, stack):
    updated = client.update(stack["id"].upper(), {"name": "New"})
    assert (updated.status_int, updated.json["id"]) == (200, stack["id"])


@pytest.mark.parametrize("body", [{"name": "New"}, {}, {"name": None}], ids=["good", "empty", "null"])
def test_a_missing_stack_is_not_found_but_an_invalid_body_is_reported_first(client, rejected, body):
    status, code = (404, "not_found") if body == {"name": "New"} else (400, "invalid_request")
    rejected(status, code, client.update, "00000000-0000-4000-8000-000000000000", body)


@pytest.mark.parametrize("stack_id", ["1", "null", "{id}", "0" * 32, "00000000-0000-4000-8000-00000000000g"])
def test_an_id_that_is_no_uuid_is_rejected(client, rejected, stack_id):
    rejected(400, "invalid_request", client.update, stack_id, {"name": "New"})


def test_an_update_changes_neither_the_manager_nor_the_id(client, stack, make_client, rejected):
    other = make_client()
    for field, value in {"manager_id": other.external_id, "id": other.external_id}.items():
        rejected(400, "invalid_request", client.update, stack["id"], {"name": "New", field: value})
    assert client.get(stack["id"]).json == stack


def test_an_update_needs_no_idempotency_key(client, stack):
    body = json.dumps({"name": "New"}).encode()
    response = client.request("PATCH", f"{STACKS}/{stack['id']}", body, {"Idempotency-Key": " "})
    assert (response.status_int, response.json["name"]) == (200, "New")
