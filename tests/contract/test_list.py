"""Pages of a list: their stacks, the order, the next cursor."""

from datetime import UTC, datetime, timedelta

import pytest

from stackmgr.limits import PAGE_NAME_BYTES
from stackmgr.stacks import repository
from tests.support.examples import configuration

MOMENT = datetime(2026, 3, 1, 12, 30, 15, 123456, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


def created(client, count):
    """Create stacks and return their ids, newest first."""
    return [client.create(configuration(name=f"No. {number}")).json["id"] for number in range(count)][::-1]


def date(admin, moments):
    """Set when stacks were created, behind the service's back: nothing in the service can."""
    for stack_id, moment in moments.items():
        changed = admin.execute(
            "UPDATE stackmgr.stacks SET created_at = %s WHERE stack_id = %s", (moment, stack_id)
        )
        assert changed.rowcount == 1


def ids(page):
    return [item["id"] for item in page.json["items"]]


def test_a_walk_meets_every_stack_once_newest_first(client):
    expected = []
    for count in range(8):
        assert client.walk(3) == expected
        page = client.page("limit=3")
        assert ids(page) == expected[:3]
        assert (page.json["next_cursor"] is not None) == (count > 3)
        expected = [*created(client, 1), *expected]


def test_a_cursor_grants_no_access_and_a_walk_is_undisturbed(client, make_client):
    newest, oldest = created(client, 2)
    theirs = make_client()
    others = created(theirs, 2)
    cursor = client.page("limit=1").json["next_cursor"]
    client.create(configuration(name="newer"), "key")
    client.create(configuration(name="newer"), "key")
    client.update(oldest, {"name": "updated"})
    client.update(newest, {"name": "updated"})
    assert ids(client.page(f"cursor={cursor}")) == [oldest]
    assert ids(theirs.page(f"cursor={cursor}")) == []
    assert ids(theirs.page(f"cursor={client.page('limit=1').json['next_cursor']}")) == others


def test_pages_hold_25_stacks_by_default_and_100_at_most(client):
    expected = created(client, 101)
    assert ids(client.page()) == expected[:25]
    largest = client.page("limit=100")
    assert ids(largest) == expected[:100]
    assert ids(client.page(f"limit=100&cursor={largest.json['next_cursor']}")) == expected[100:]
    assert ids(client.page(f"cursor={client.page('limit=50').json['next_cursor']}")) == expected[50:75]
    assert client.walk(1) == expected


@pytest.mark.parametrize("page_bytes", [12, PAGE_NAME_BYTES], ids=["pages end early", "full pages"])
def test_stacks_of_one_moment_are_ordered_by_their_ids_descending(client, admin, monkeypatch, page_bytes):
    monkeypatch.setattr(repository, "PAGE_NAME_BYTES", page_bytes)
    expected = sorted(created(client, 7), reverse=True)
    date(admin, dict.fromkeys(expected, MOMENT))
    for limit in (1, 2, 3, 7):
        assert client.walk(limit) == expected


def test_one_microsecond_separates_an_older_stack_from_a_newer_one(client, admin):
    # The smaller ids are the newer stacks, so that the id alone would give the opposite order.
    expected = sorted(created(client, 6))
    date(admin, {stack_id: MOMENT - number * MICROSECOND for number, stack_id in enumerate(expected)})
    for limit in (1, 4):
        assert client.walk(limit) == expected
