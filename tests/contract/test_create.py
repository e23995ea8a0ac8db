"""Creating a stack: accepted bodies, the response, the rows it writes."""

import json

import pytest

from tests.support.bad_bodies import SPACES, field_text, two_weights
from tests.support.examples import ADDRESSES, TOKENS, configuration, spread
from tests.support.tables import each_case

NAMES = {
    "ordinary": ("a", "  Growth\t\n", f"{SPACES}x{SPACES}", "Caf\u00e9", "Cafe\u0301", "null"),
    # U+180E and U+2800 look like spaces, the others like nothing.
    "invisible, but not blank": tuple("\u200b\ufeff\u200d\u2060\u180e\u2800\u00ad\u0301"),
    "code": ("\"\\/'`", "<script>alert(1)</script>", "'; DROP TABLE stacks; --", "%s %(name)s %%"),
    "escapes as text, or long": ("\\u0000 \\ud800", "\u00e9" * 5000),
    "control characters": ("\x01\x02\x1b\x7f\x9f", "a\u2028b\u2029c\x85d"),
    "rare": ("\U0001f4c8\U0010fffd", "\ufffe\uffff\U0010ffff", "\ufffd", "\u202e\u05e9\u05dc\u05d5\u05dd"),
}


@each_case("name", NAMES)
@pytest.mark.parametrize("escaped", [True, False], ids=["escaped", "raw"])
def test_a_name_is_returned_unchanged(client, name, escaped):
    created = client.create(field_text("name", json.dumps(name, ensure_ascii=escaped)))
    assert created.status_int == 201
    assert f'"name":{json.dumps(name, ensure_ascii=False)},'.encode() in created.body  # the fewest escapes
    assert client.get(created.json["id"]).json["name"] == name
    assert client.update(created.json["id"], {"name": name + "."}).json["name"] == name + "."


@pytest.mark.parametrize("spell", [str.lower, str], ids=["lowercase", "checksummed"])
def test_all_thirty_tokens_are_accepted(client, spell):
    written = [spell(token["address"]) for token in TOKENS]
    created = client.create(configuration(allocation=spread(written)))
    assert created.status_int == 201
    assert client.statements == ["api_key_verify", "manager_find", "manager_insert", "stack_create"]
    saved = created.json["allocation"]
    assert [item["token_address"] for item in saved] == ADDRESSES
    assert {item["token_address"]: item["weight_bps"] for item in saved} == {
        address.lower(): 0 if number else 10000 for number, address in enumerate(written)
    }


@pytest.mark.parametrize(
    "weights",
    [("0", "10000"), ("10000", "0"), ("1", "9999"), ("5000", "5000"), ("-0", "10000"), ("10000", "-0")],
)
def test_weights_are_0_to_10000(client, weights):
    created = client.create(field_text("allocation", two_weights(*weights)))
    assert created.status_int == 201
    assert [item["weight_bps"] for item in created.json["allocation"]] == [int(text) for text in weights]
    assert b"-0" not in created.body.partition(b'"allocation":')[2]
