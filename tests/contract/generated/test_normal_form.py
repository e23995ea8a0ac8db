"""The normal form of an allocation: every allocation has one, and one that is normal is its own."""

import json
import random
import re

from hypothesis import event, given, settings
from hypothesis import strategies as st

from stackmgr.stacks import configuration
from tests.contract.generated.strategies import (
    allocations,
    chances,
    changes,
    configurations,
    normal,
    written,
)
from tests.support.examples import ADDRESSES

ITEM = r'\{"token_address":"(0x[0-9a-f]{40})","weight_bps":(0|[1-9][0-9]{0,4})\}'


def is_normal(text: str) -> bool:
    """Whether *text* is a stored allocation by the rules of the data dictionary."""
    if not re.fullmatch(rf"\[{ITEM}(,{ITEM})*\]", text):
        return False
    items = re.findall(ITEM, text)
    addresses = [address for address, _ in items]
    return (
        len(items) <= 30
        and addresses == sorted(set(addresses))
        and sum(int(weight) for _, weight in items) == 10000
    )


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


def exchange(text, chance):
    """Exchange two items, which takes their order."""
    items = json.loads(text)
    first, second = chance.randrange(len(items)), chance.randrange(len(items))
    items[first], items[second] = items[second], items[first]
    return json.dumps(items, separators=(",", ":"))


def repeat(text, chance):
    """Repeat an item with no weight, which makes 31 of 30."""
    items = json.loads(text)
    item = chance.choice([*(item["token_address"] for item in items), *ADDRESSES])
    items = sorted([*items, {"token_address": item, "weight_bps": 0}], key=lambda i: i["token_address"])
    return json.dumps(items, separators=(",", ":"))


def shift(text, chance):
    """Add a little to the weight of an item, and take it from another one or not."""
    items = json.loads(text)
    amount = chance.choice([1, -1, 10000])
    chance.choice(items)["weight_bps"] += amount
    chance.choice(items)["weight_bps"] -= chance.choice([0, amount])
    return json.dumps(items, separators=(",", ":"))


def replace_character(text, chance):
    """Put another character, or none, in place of one."""
    position = chance.randrange(len(text))
    return text[:position] + chance.choice(["", *'0aAgx9 -.,"\n']) + text[position + 1 :]


EDITS = [exchange, repeat, shift, replace_character]


@settings(max_examples=300)
@given(allocations(), st.lists(st.sampled_from(EDITS), max_size=2), st.integers(0, 2**32))
def test_the_database_accepts_exactly_the_allocations_in_normal_form(
    admin, spellings, allocation, edits, seed
):
    chance = random.Random(seed)  # noqa: S311 - to be repeatable
    text = configuration.normalize_allocation(allocation, spellings)
    for edit in edits:
        try:
            text = edit(text, chance)
            json.loads(text)
        except (ValueError, LookupError, TypeError):
            return
    accepted = is_normal(text)
    event("accepted" if accepted else "rejected")
    checked = admin.execute(
        b"SELECT stackmgr.allocation_is_normalised(%s::text::json) IS TRUE", [text]
    ).fetchone()
    assert checked == (accepted,)
