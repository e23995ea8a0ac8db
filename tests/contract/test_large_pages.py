"""Pages that end early, because their names take PAGE_NAME_BYTES."""

import json

import pytest

from stackmgr import paths
from stackmgr.database.connection import DatabaseConnection
from stackmgr.limits import PAGE_NAME_BYTES
from tests.support.examples import configuration

LONGEST_ORDINARY = PAGE_NAME_BYTES // 100
ORDINARY = ["stack_list"]
READ_AGAIN = [*ORDINARY, "stack_list_long_names"]


def body(name):
    return json.dumps(configuration(name=name), ensure_ascii=False).encode()


@pytest.fixture
def save(client):
    """Return a function that creates stacks of some names and returns their ids, newest first."""
    client.page()

    def save(*names):
        return [client.create(body(name)).json["id"] for name in names][::-1]

    return save


def ids(page):
    return [item["id"] for item in page.json["items"]]


def pages(client, limit=100):
    """Return the ids of each page of the list."""
    found, query = [], f"limit={limit}"
    while True:
        page = client.page(query)
        found.append(ids(page))
        if page.json["next_cursor"] is None:
            return found
        query = f"limit=100&cursor={page.json['next_cursor']}"


@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize("character", ["x", "\xe9", "\N{GRINNING FACE}", '"'])
def test_the_names_of_a_page_take_at_most_so_many_bytes(client, save, character, more):
    size = len(character.encode())
    each = PAGE_NAME_BYTES // 4 // size
    saved = save("x" * more + character * each, *[character * each] * 3)
    client.page()
    assert client.statements == READ_AGAIN
    assert pages(client) == [saved[: 4 - more], *([saved[3:]] if more else [])]


@pytest.mark.parametrize(("length", "statements"), [(0, ORDINARY), (1, READ_AGAIN)])
def test_only_a_page_with_a_long_name_is_read_again(client, save, length, statements):
    saved = save("\xe9" + "x" * (LONGEST_ORDINARY - 2 + length), "short")
    assert ids(client.page()) == saved
    assert client.statements == statements
    assert ids(client.page("limit=1")) == saved[:1]  # the long name is that of the next page
    assert client.statements == ORDINARY


@pytest.mark.parametrize("limit", [1, 2, 100])
def test_a_walk_meets_every_stack_of_the_longest_names(client, save, limit):
    longest = 262_144 - len(body(""))
    saved = save(*["x" * longest, "short"] * 2, "x" * longest)
    assert client.walk(limit) == saved


def test_stacks_of_one_moment_with_long_names_are_ordered_by_id_whatever_the_plan(client, save, admin):
    saved = save(*["x" * 10_000] * 8)
    text = (paths.directory("sql") / "stack_list_long_names.sql").read_bytes()
    with admin.transaction():
        updated = (
            "UPDATE stackmgr.stacks SET created_at = now() WHERE stack_id = ANY (%s) RETURNING manager_id"
        )
        [manager_id, *_] = admin.execute(updated, (saved,)).fetchone()
        admin.execute("SET LOCAL enable_indexscan = off")
        admin.execute("SET LOCAL enable_bitmapscan = off")
        first = {"after_created_at": "infinity", "after_stack_id": saved[0], "row_limit": 8}
        rows = admin.execute(
            text, first | {"manager_id": manager_id, "page_bytes": PAGE_NAME_BYTES}
        ).fetchall()
    assert [row[0] for row in rows] == sorted(saved, reverse=True)


# Between the two statements of the first page, which see different snapshots, another writer changes the
# stacks at these places of the list; then each page has the stacks of these places.
IN_BETWEEN = {
    "a name gets long": ([1], ["UPDATE stackmgr.stacks SET name = repeat('x', 262144)"], [[0], [1], [2]]),
    "the long name gets short": ([1], ["UPDATE stackmgr.stacks SET name = 'short'"], [[0, 1], [2]]),
    "another stack gets first": (
        [2],
        ["UPDATE stackmgr.stacks SET created_at = '2999-01-01'"],
        [[2, 0], [1]],
    ),
    "all are erased": (
        [0, 1, 2],
        list(map("DELETE FROM stackmgr.{}".format, ("stacks", "stack_revisions", "creation_receipts"))),
        [[]],
    ),
}


@pytest.mark.parametrize("case", IN_BETWEEN.values(), ids=IN_BETWEEN)
def test_what_is_read_again_is_the_page(client, save, admin, monkeypatch, case):
    places, changes, expected = case
    saved = save("a", "x" * 10_000, "b")
    original = DatabaseConnection.run

    def run(self, statement, parameters, deadline):
        while statement.name == "stack_list_long_names" and changes:
            admin.execute(changes.pop() + " WHERE stack_id = ANY (%s)", [[saved[each] for each in places]])
        return original(self, statement, parameters, deadline)

    monkeypatch.setattr(DatabaseConnection, "run", run)
    assert pages(client, limit=2) == [[saved[each] for each in page] for page in expected]
