"""Updating a stack: supplied fields replace, omitted ones stay, each update adds a revision."""

import itertools
import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.examples import ADDRESSES, CONFIGURATION, allocation, configuration

NEW = {
    "name": " Income ",
    "allocation": allocation((ADDRESSES[7], 2500), (ADDRESSES[3], 0), (ADDRESSES[5], 7500)),
    "schedule": {"preset": "hourly"},
}
SAVED = NEW | {"allocation": allocation((ADDRESSES[3], 0), (ADDRESSES[5], 7500), (ADDRESSES[7], 2500))}

COMBINATIONS = [fields for count in (1, 2, 3) for fields in itertools.combinations(NEW, count)]


@pytest.mark.parametrize("fields", COMBINATIONS, ids="+".join)
@pytest.mark.parametrize("values", [(NEW, SAVED), (CONFIGURATION, {})], ids=["new", "current"])
def test_supplied_fields_are_replaced_and_omitted_ones_kept(client, stack, row_counts, values, fields):
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
