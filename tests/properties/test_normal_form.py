"""The normal form of an allocation: every allocation has one, and one that is normal is its own."""

import json

from hypothesis import given, settings

from stackmgr.stacks import configuration
from tests.properties.strategies import (
    allocations,
    chances,
    changes,
    configurations,
    normal,
    written,
)


def items_of(text):
    return [(item["token_address"], item["weight_bps"]) for item in json.loads(text)]


def spelled(allocation, chance):
    """Return *allocation* in another order and with other spellings."""
    return json.loads(written({"allocation": allocation}, chance))["allocation"]


@given(allocations(), chances)
def test_the_normal_form_is_lowercase_sorted_and_keeps_every_weight(spellings, allocation, chance):
    items = items_of(configuration.normalize_allocation(spelled(allocation, chance), spellings))
    addresses = [address for address, _ in items]
    assert addresses == sorted({address.lower() for address in addresses})
    assert sum(weight for _, weight in items) == 10000
    assert dict(items) == {item["token_address"]: item["weight_bps"] for item in allocation}


@given(allocations(), chances)
def test_the_normal_form_of_a_normal_form_is_itself(spellings, allocation, chance):
    once = configuration.normalize_allocation(spelled(allocation, chance), spellings)
    assert configuration.normalize_allocation(json.loads(once), spellings) == once


@settings(max_examples=30)
@given(configurations(), changes(), chances)
def test_what_is_saved_is_what_was_sent_in_normal_form(make_client, document, later, chance):
    client = make_client()
    created = client.create(written(document, chance)).json
    ids = {"id": created["id"], "current_revision_id": created["current_revision_id"]}
    assert created == ids | normal(document)

    updated = client.update(created["id"], written(later, chance)).json
    assert updated == ids | {"current_revision_id": updated["current_revision_id"]} | normal(document | later)
    assert updated["current_revision_id"] != created["current_revision_id"]
    assert client.get(created["id"]).json == updated
