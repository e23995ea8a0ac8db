"""The query string of a list: valid and invalid ones."""

from datetime import UTC, datetime
from urllib.parse import quote
from uuid import UUID

import pytest

from stackmgr.stacks import cursor
from tests.support.client import STACKS
from tests.support.examples import configuration
from tests.support.tables import each_case

ID = UUID("0f0e0d0c-0b0a-4988-8776-655443322110")
CURSOR = cursor.encode(cursor.Position(datetime(2026, 3, 1, 12, 30, 15, 123456, tzinfo=UTC), ID))
BUT_ONE = CURSOR[:-1]


@pytest.mark.parametrize("text", ["1", "2", "7", "007", "0" * 5000 + "9", "100", "%37", "0%31"])
def test_a_limit_is_decimal_digits_from_1_to_100(client, text):
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
    "another length": (BUT_ONE, CURSOR[1:], CURSOR + "A", f"{CURSOR},{CURSOR}", "1" + "A" * 5000),
    "more at an end": (*(CURSOR + end for end in ("%3D", "=", "%0A", "+")), "+" + CURSOR),
    "another version": ("0" + CURSOR[1:], "2" + CURSOR[1:], "%D9%A1" + CURSOR[1:]),
    "another alphabet": [BUT_ONE + end for end in ("%2B", "%2F", "!", "%00", "%C3%A9", "%FF")],
    "malformed escapes": (CURSOR[:-2] + "%", CURSOR[:-2] + "%4"),
    "out of range": ("1" + "_" * 32, "1gA" + "A" * 30),
}
OTHER_QUERIES = {
    "another case": ("Limit=5", "LIMIT=5", f"Cursor={CURSOR}"),
    "another name": ("page=1", "offset=0", "manager_id=1", "\u00e9=1"),
    "nearly the name": ("limit[]=5", "limit%20=5", "+limit=5", "limit%00=5", "limi%74%74=5"),
    "no name or no value": ("=5", "=", "limit", "cursor", "5", "limit=5&limit=", "limit=5&cursor="),
    "a limit twice": ("limit=5&limit=5", "limit=5&limit=6", "limit=5&lim%69t=5"),
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


def test_a_cursor_needs_no_escaping_but_may_be_escaped(client):
    older = client.create(configuration()).json
    client.create(configuration())
    given = client.page("limit=1").json["next_cursor"]
    assert quote(given, safe="") == given
    for text in (given, "".join(f"%{ord(character):02x}" for character in given)):
        assert client.page(f"cursor={text}").json == {"items": [older], "next_cursor": None}


@each_case(
    "query",
    {
        "ampersands to spare": ("", "&", "&limit=5", "limit=5&&"),
        "any order": (f"limit=5&cursor={CURSOR}", f"cursor={CURSOR}&limit=5"),
        "escaped": ("lim%69t=5", f"%63ursor={CURSOR}"),
    },
)
def test_the_two_parameters_may_come_in_any_order_escaped_and_with_ampersands_to_spare(client, query):
    assert client.request("GET", f"{STACKS}?{query}").status_int == 200
