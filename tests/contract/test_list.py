"""Lists: the query string, the order, cursors, and pages that end early because their names are long."""

import json
from datetime import UTC, datetime
from urllib.parse import quote
from uuid import UUID

import pytest

from stackmgr.database.connection import DatabaseConnection
from stackmgr.limits import MAX_PAGE_SIZE, PAGE_NAME_BYTES
from stackmgr.stacks import cursor, repository
from tests.support.client import STACKS
from tests.support.examples import configuration
from tests.support.tables import each_case

ID = UUID("0f0e0d0c-0b0a-4988-8776-655443322110")
CURSOR = cursor.encode(cursor.Position(datetime(2026, 3, 1, 12, 30, 15, 123456, tzinfo=UTC), ID))
ORDINARY = ["stack_list"]
READ_AGAIN = [*ORDINARY, "stack_list_long_names"]


def ids(page):
    return [item["id"] for item in page.json["items"]]


def test_pages_have_25_or_up_to_100_stacks(client, save):
    expected = save(*(f"No. {number}" for number in range(101)))
    assert ids(client.page()) == expected[:25]
    assert ids(client.page("limit=100")) == expected[:100]


@pytest.mark.parametrize("text", ["1", "2", "7", "007", "0" * 5000 + "9", "100", "%37", "0%31"])
def test_a_limit_is_digits_from_1_to_100(client, text):
    client.create(configuration())
    assert len(client.page(f"limit={text}").json["items"]) == 1


OTHER_LIMITS = {
    "out of range": ("0", "000", "101", "1000", "0101", "9" * 5000, "1" + "0" * 5000),
    "signed": ("-1", "-0", "+5", "%2B5"),
    "white space or none": ("", "%205", "5%20", "5%0A", "5%00", "5+"),
    "not digits": ("1_0", "1e1", "1.0", "0x10", "1,2", "5;", "ten", "null", '"5"', "5'--"),
    "another script": ("%D9%A3", "%EF%BC%95", "\u00b2"),
    "malformed escapes": ("%", "%5", "5%", "%zz", "%FF", "%C3", "%ED%A0%80"),
}
OTHER_CURSORS = {
    "other texts": ("", "%20", "null", "0", "-1", "1", str(ID), "2026-03-01T12:30:15.123456Z"),
    "JSON": ("%7B%22id%22%3A1%7D",),
    "another one": (*(CURSOR + end for end in ("A", "%3D", "=", "%0A", "+")), "+" + CURSOR, "1" + "_" * 32),
    "malformed escapes": (CURSOR[:-2] + "%", CURSOR[:-2] + "%4", CURSOR[:-1] + "%FF"),
}
OTHER_QUERIES = {
    "another case": ("Limit=5", "LIMIT=5", f"Cursor={CURSOR}"),
    "another name": ("page=1", "offset=0", "manager_id=1", "\u00e9=1"),
    "nearly the name": ("limit[]=5", "limit%20=5", "+limit=5", "limit%00=5", "limi%74%74=5"),
    "no name or no value": ("=5", "=", "limit", "cursor", "5", "limit=5&limit=", "limit=5&cursor="),
    "a limit twice": ("limit=5&limit=5", "limit=5&limit=6", "limit=5&lim%69t=5", "lim%69t=5&limit=5"),
    "a cursor twice": (f"cursor={CURSOR}&cursor={CURSOR}", f"cursor={CURSOR}&limit=5&cursor={CURSOR}"),
    "an unknown one beside": ("limit=5&unknown=1", "unknown=1&unknown=1"),
    "another form": (f"limit=5;cursor={CURSOR}", "limit=5?", "limit==5", "limit=5#"),
    "malformed escapes": ("%=5", "%zz=5", "%FF=5", "l%C3=5", "limit=5&%"),
}


@each_case(
    "query",
    {f"limit {kind}": [f"limit={text}" for text in texts] for kind, texts in OTHER_LIMITS.items()}
    | {f"cursor {kind}": [f"cursor={text}" for text in texts] for kind, texts in OTHER_CURSORS.items()}
    | OTHER_QUERIES,
)
def test_any_other_query_is_invalid(client, query):
    response = client.page(query)
    assert (response.status_int, response.json["code"]) == (400, "invalid_request")
    assert "stack_list" not in client.statements


def test_a_cursor_needs_no_escaping(client):
    older = client.create(configuration()).json
    client.create(configuration())
    given = client.page("limit=1").json["next_cursor"]
    assert quote(given, safe="") == given
    for text in (given, "".join(f"%{ord(character):02x}" for character in given)):
        assert client.page(f"cursor={text}").json == {"items": [older], "next_cursor": None}


def test_other_spellings_of_the_parameters(client):
    ampersands = ("", "&", "&limit=5", "limit=5&&")
    orders = (f"limit=5&cursor={CURSOR}", f"cursor={CURSOR}&limit=5")
    for query in (*ampersands, *orders, "lim%69t=5", f"%63ursor={CURSOR}"):
        assert client.request("GET", f"{STACKS}?{query}").status_int == 200


def body(name):
    return json.dumps(configuration(name=name), ensure_ascii=False).encode()


@pytest.fixture
def save(client):
    client.page()

    def save(*names):
        return [client.create(body(name)).json["id"] for name in names][::-1]

    return save


@pytest.mark.parametrize("page_size", [MAX_PAGE_SIZE, 500])
@pytest.mark.parametrize(("length", "statements"), [(0, ORDINARY), (1, READ_AGAIN)])
def test_a_long_name_is_read_again(client, save, monkeypatch, length, statements, page_size):
    monkeypatch.setattr(repository, "MAX_PAGE_SIZE", page_size)
    saved = save("\xe9" + "x" * (PAGE_NAME_BYTES // page_size - 2 + length), "short")
    assert ids(client.page()) == saved
    assert client.statements == statements
    assert ids(client.page("limit=1")) == saved[:1]  # the long name is that of the next page
    assert client.statements == ORDINARY


@pytest.mark.parametrize("limit", [1, 2, 100])
def test_a_walk_meets_the_longest_names(client, save, admin, limit):
    longest = 262_144 - len(body(""))
    saved = save(*["x" * longest, "short"] * 2, "x" * longest)
    assert client.walk(limit) == saved
    admin.execute("UPDATE stackmgr.stacks SET created_at = '2026-01-01' WHERE stack_id = ANY (%s)", [saved])
    assert client.walk(limit) == sorted(saved, reverse=True)


# Between the two statements of the first page, which see different snapshots, another writer
# changes the stacks at these places of the list; then each page has the stacks of these places.
ERASED = ("stacks", "stack_revisions", "creation_receipts")  # the last one first
IN_BETWEEN = {
    "a name gets long": ([1], ["UPDATE stackmgr.stacks SET name = repeat('x', 262144)"], [[0], [1], [2]]),
    "a name gets longer": ([1], ["UPDATE stackmgr.stacks SET name = repeat('x', 262145)"], [[0], [1], [2]]),
    "the long name gets short": ([1], ["UPDATE stackmgr.stacks SET name = 'short'"], [[0, 1], [2]]),
    "the last gets first": ([2], ["UPDATE stackmgr.stacks SET created_at = '2999-01-01'"], [[2, 0], [1]]),
    "all are erased": ([0, 1, 2], [f"DELETE FROM stackmgr.{table}" for table in ERASED], [[]]),
}


@pytest.mark.parametrize("case", IN_BETWEEN.values(), ids=IN_BETWEEN)
def test_what_is_read_again_is_the_page(client, save, admin, monkeypatch, case):
    places, (*changes,), expected = case
    saved = save("a", "x" * 10_000, "b")
    original = DatabaseConnection.run

    def run(self, execution, deadline):
        while execution.statement.name == "stack_list_long_names" and changes:
            admin.execute(changes.pop() + " WHERE stack_id = ANY (%s)", [[saved[each] for each in places]])
        return original(self, execution, deadline)

    monkeypatch.setattr(DatabaseConnection, "run", run)
    assert [*client.pages(2, 100)] == [[saved[each] for each in page] for page in expected]
