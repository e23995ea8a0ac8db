"""Walks through lists of any times of creation, most of them shared, in pages of any size."""

from datetime import UTC, datetime, timedelta
from itertools import cycle, islice

from hypothesis import given, settings
from hypothesis import strategies as st

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
stacks = st.dictionaries(ids.map(str), st.one_of(close, close, anywhere), max_size=25)
limits = st.lists(st.integers(1, 7), min_size=1, max_size=4)

INSERT = """
    WITH manager AS (SELECT manager_id FROM stackmgr.managers WHERE external_id = %(external_id)s),
    made AS (
        INSERT INTO stackmgr.stacks
            (manager_id, stack_id, revision_id, revision_number, name, allocation, preset, created_at)
        SELECT manager_id, stack_id, gen_random_uuid(), 1, 'Walk', %(allocation)s, 'daily', created_at
        FROM manager, unnest(%(ids)s::uuid[], %(moments)s::timestamptz[]) AS given (stack_id, created_at)
        RETURNING manager_id, stack_id, revision_id, revision_number, name, allocation, preset
    )
    INSERT INTO stackmgr.stack_revisions
        (manager_id, stack_id, revision_id, revision_number, name, allocation, preset,
         identity_id, request_id)
    SELECT manager_id, stack_id, revision_id, revision_number, name, allocation, preset, 'walk', 'walk'
    FROM made
"""


def insert(admin, client, moments):
    """Save stacks of *client*'s with given ids and times: nothing in the service can."""
    client.page()  # makes the record of the manager
    made = admin.execute(
        INSERT,
        {
            "external_id": client.external_id,
            "allocation": f'[{{"token_address":"{ADDRESSES[0]}","weight_bps":10000}}]',
            "ids": list(moments),
            "moments": list(moments.values()),
        },
    )
    assert made.rowcount == len(moments)


def walk(client, sizes, most):
    """Return the pages of the complete list, each of the next of *sizes*; there are *most* at the most."""
    pages, query = [], ""
    for size in islice(cycle(sizes), most):
        response = client.page(f"limit={size}{query}").json
        assert len(response["items"]) <= size
        pages.append([item["id"] for item in response["items"]])
        if response["next_cursor"] is None:
            return pages
        assert len(response["items"]) == size
        query = f"&cursor={response['next_cursor']}"
    raise AssertionError("the walk does not end")


@settings(max_examples=60)
@given(stacks, limits)
def test_a_walk_meets_every_stack_once_in_order_whatever_the_sizes_of_its_pages(
    make_client, admin, moments, sizes
):
    client = make_client()
    insert(admin, client, moments)
    pages = walk(client, sizes, len(moments) + 1)
    expected = sorted(moments, key=lambda stack_id: (moments[stack_id], stack_id), reverse=True)
    assert [stack_id for page in pages for stack_id in page] == expected
    assert pages[-1] or not expected
