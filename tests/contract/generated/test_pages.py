"""Walks through lists of any times of creation, most of them shared, in pages of any size."""

from datetime import UTC, datetime, timedelta
from itertools import cycle, islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stackmgr.limits import PAGE_NAME_BYTES
from stackmgr.stacks import repository
from tests.contract.generated.model import page_size
from tests.support.examples import ADDRESSES

MOMENT = datetime(2026, 3, 1, 12, 30, 15, 123456, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)

# Few enough for ties to be the rule, close enough for a lost microsecond to show.
close = st.integers(-2, 2).map(lambda steps: MOMENT + steps * MICROSECOND)
anywhere = st.datetimes(
    datetime(1970, 1, 1),  # noqa: DTZ001 - the strategy adds the zone
    datetime(9999, 12, 31),  # noqa: DTZ001
    timezones=st.just(UTC),
)
# Ids that share all but a few bits, so that no part of one can be left out of the comparison.
ids = st.one_of(st.uuids(), st.integers(0, 3).flatmap(lambda n: st.sampled_from(NEIGHBOURS[n])))
NEIGHBOURS = [
    [f"{number:08x}-0000-4000-8000-000000000000" for number in range(4)],
    [f"00000000-0000-4000-8000-{number:012x}" for number in range(4)],
    ["ffffffff-ffff-ffff-ffff-ffffffffffff", "00000000-0000-0000-0000-000000000000"],
    ["7fffffff-ffff-ffff-ffff-ffffffffffff", "80000000-0000-0000-0000-000000000000"],
]
names = st.integers(1, 12).map("\xe9".__mul__)
stacks = st.dictionaries(ids.map(str), st.tuples(st.one_of(close, close, anywhere), names), max_size=25)
limits = st.lists(st.integers(1, 7), min_size=1, max_size=4)

INSERT = """
    WITH manager AS (SELECT manager_id FROM stackmgr.managers WHERE external_id = %(external_id)s),
    made AS (
        INSERT INTO stackmgr.stacks
            (manager_id, stack_id, revision_id, revision_number, name, allocation, preset, created_at)
        SELECT manager_id, stack_id, gen_random_uuid(), 1, name, %(allocation)s, 'daily', created_at
        FROM manager,
            unnest(%(ids)s::uuid[], %(moments)s::timestamptz[], %(names)s::text[])
                AS given (stack_id, created_at, name)
        RETURNING manager_id, stack_id, revision_id, revision_number, name, allocation, preset
    )
    INSERT INTO stackmgr.stack_revisions
        (manager_id, stack_id, revision_id, revision_number, name, allocation, preset,
         identity_id, request_id)
    SELECT manager_id, stack_id, revision_id, revision_number, name, allocation, preset, 'walk', 'walk'
    FROM made
"""


def insert(admin, client, stacks):
    """Save stacks of *client*'s with given ids, times and names: nothing in the service can."""
    client.page()  # makes the record of the manager
    made = admin.execute(
        INSERT,
        {
            "external_id": client.external_id,
            "allocation": f'[{{"token_address":"{ADDRESSES[0]}","weight_bps":10000}}]',
            "ids": list(stacks),
            "moments": [moment for moment, _ in stacks.values()],
            "names": [name for _, name in stacks.values()],
        },
    )
    assert made.rowcount == len(stacks)


def walk(client, sizes, most):
    """Return the pages of the complete list, by the next of *sizes*; there are *most* at the most."""
    pages, query = [], ""
    for size in islice(cycle(sizes), most):
        response = client.page(f"limit={size}{query}").json
        pages.append([item["id"] for item in response["items"]])
        if response["next_cursor"] is None:
            return pages
        query = f"&cursor={response['next_cursor']}"
    raise AssertionError("the walk does not end")


def expected_pages(stacks, limits, page_bytes):
    """Return the ids of the stacks of each page."""
    rest = sorted(stacks, key=lambda stack_id: (stacks[stack_id][0], stack_id), reverse=True)
    pages = []
    for limit in cycle(limits):
        size = page_size([len(stacks[stack_id][1].encode()) for stack_id in rest], limit, page_bytes)
        pages.append(rest[:size])
        rest = rest[size:]
        if not rest:
            return pages
    raise AssertionError("unreachable")


@pytest.mark.parametrize("page_bytes", [30, PAGE_NAME_BYTES], ids=["pages end early", "full pages"])
def test_a_walk_meets_every_stack_once_in_order_whatever_the_sizes_of_its_pages(
    make_client, admin, monkeypatch, page_bytes
):
    monkeypatch.setattr(repository, "PAGE_NAME_BYTES", page_bytes)

    @settings(max_examples=40)
    @given(stacks, limits)
    def check(saved, limits):
        client = make_client()
        insert(admin, client, saved)
        assert walk(client, limits, len(saved) + 1) == expected_pages(saved, limits, page_bytes)

    check()
