"""Two creates with one Idempotency-Key: which inputs are the same, and which conflict."""

import json

import psycopg
import pytest

from stackmgr.stacks.configuration import Configuration
from stackmgr.stacks.eip55 import eip55
from tests.support.corpus import field_text
from tests.support.examples import ADDRESSES, CONFIGURATION, allocation, configuration

ITEMS = CONFIGURATION["allocation"]
TEXT = json.dumps(CONFIGURATION)

SAME = {
    "the same bytes": TEXT,
    "fields in another order": json.dumps(dict(reversed(CONFIGURATION.items()))),
    "items in another order": json.dumps(configuration(allocation=ITEMS[::-1])),
    "members of an item in another order": json.dumps(
        configuration(allocation=[dict(reversed(item.items())) for item in ITEMS])
    ),
    "addresses all lowercase": TEXT.replace(eip55(ADDRESSES[1]), ADDRESSES[1]),
    "addresses all checksummed": TEXT.replace(ADDRESSES[0], eip55(ADDRESSES[0])),
    "addresses each the other way": TEXT.replace(eip55(ADDRESSES[1]), ADDRESSES[1]).replace(
        ADDRESSES[0], eip55(ADDRESSES[0])
    ),
    "no white space": json.dumps(CONFIGURATION, separators=(",", ":")),
    "much white space": json.dumps(CONFIGURATION, indent=8).replace("\n", "\r\n\t"),
    "white space around": f" \t\r\n{TEXT}\n\n",
    "escaped member names": TEXT.replace('"name"', r'"\u006e\u0061me"'),
    "an escaped name": TEXT.replace("Growth", r"\u0047\u0072owth"),
    "an escaped preset": TEXT.replace("weekly", r"week\u006Cy"),
    "an escaped address": TEXT.replace(ADDRESSES[0], r"\u0030" + ADDRESSES[0][1:]),
}

DIFFERENT = {
    "name": configuration(name="growth"),
    "space after the name": configuration(name="Growth "),
    "space before the name": configuration(name=" Growth"),
    "zero width space in the name": configuration(name="Growth\u200b"),
    "fullwidth letter in the name": configuration(name="\uff27rowth"),
    "weights": configuration(allocation=allocation((ADDRESSES[0], 4001), (ADDRESSES[1], 5999))),
    "weights the other way round": configuration(
        allocation=allocation((ADDRESSES[0], 6000), (ADDRESSES[1], 4000))
    ),
    "one more token of no weight": configuration(allocation=[*ITEMS, *allocation((ADDRESSES[2], 0))]),
    "another token": configuration(allocation=allocation((ADDRESSES[0], 4000), (ADDRESSES[2], 6000))),
    "fewer tokens": configuration(allocation=allocation((ADDRESSES[0], 10000))),
} | {preset: configuration(schedule={"preset": preset}) for preset in ("hourly", "daily", "monthly")}


@pytest.mark.parametrize("text", SAME.values(), ids=SAME)
def test_the_same_input_in_another_writing_is_a_retry(client, unchanged, text):
    created = client.create(TEXT.encode(), "key")
    retried = unchanged(client.create, text.encode(), "key")
    assert (retried.status_int, retried.body) == (200, created.body)
    assert retried.headers["ETag"] == created.headers["ETag"]


@pytest.mark.parametrize("document", DIFFERENT.values(), ids=DIFFERENT)
def test_other_input_is_a_conflict(client, rejected, document):
    created = client.create(CONFIGURATION, "key")
    rejected(409, "conflict", client.create, document, "key")
    assert client.get(created.json["id"]).body == created.body


@pytest.mark.parametrize(
    ("first", "second", "status"),
    [
        pytest.param('"Caf\u00e9"', '"Cafe\u0301"', 409, id="composed, decomposed"),
        pytest.param('"Cafe\u0301"', '"Caf\u00e9"', 409, id="decomposed, composed"),
        pytest.param('"\u212b"', '"\u00c5"', 409, id="Angstrom sign, A with ring"),
        pytest.param('"Caf\u00e9"', r'"Caf\u00e9"', 200, id="raw, escaped"),
        pytest.param(r'"\u00E9"', r'"\u00e9"', 200, id="capital, small digits of an escape"),
        pytest.param('"\U0001f4c8"', r'"\ud83d\udcc8"', 200, id="raw, pair of escapes"),
        pytest.param(r'"a\/b"', '"a/b"', 200, id="escaped, raw slash"),
        pytest.param(r'"a\nb"', r'"a\u000ab"', 200, id="short, long escape"),
        pytest.param(r'"a\\nb"', r'"a\nb"', 409, id="backslash and n, line feed"),
        pytest.param(r'"\\u0041"', '"A"', 409, id="text of an escape, its character"),
        pytest.param(r'"a\",\"weekly\"]"', '"a"', 409, id="a name that looks like more of the input"),
    ],
)
def test_names_are_compared_code_point_for_code_point(client, first, second, status):
    assert client.create(field_text("name", first), "key").status_int == 201
    assert client.create(field_text("name", second), "key").status_int == status


# Written out by hand and hashed with sha256sum: receipts never expire, so neither may this form.
VECTORS = [
    pytest.param(
        Configuration(
            "Growth",
            '[{"token_address":"0x0594134df3f171a354d9c85ebd65b7a6148f6d09","weight_bps":4000},'
            '{"token_address":"0x117cc2133c37b721f49de2a7a74833232b3b4c0c","weight_bps":6000}]',
            "weekly",
        ),
        "8979fabe72fc3b8900ae1577f03873889efcd70d9335124254ef1d5817d09527",
        id="plain",
    ),
    pytest.param(
        Configuration(
            ' \xc9t\xe9 "\\/\x7f\U0001f600\n\x01 ',
            '[{"token_address":"0x8005d266423c7ea827372c9c864491e5786600ea","weight_bps":10000}]',
            "monthly",
        ),
        "1c053d4714885a8d233e6ea7fe028e2114398b201c64d7941bdabaca7570ba0a",
        id="a name full of escapes",
    ),
]


@pytest.mark.parametrize(("wanted", "digest"), VECTORS)
def test_the_receipt_holds_that_digest(client, admin: psycopg.Connection, wanted, digest):
    items = [item | {"token_address": eip55(item["token_address"])} for item in json.loads(wanted.allocation)]
    document = {"schedule": {"preset": wanted.preset}, "allocation": items[::-1], "name": wanted.name}
    created = client.create(document).json
    found = admin.execute(
        "SELECT input_digest FROM stackmgr.creation_receipts WHERE stack_id = %s", [created["id"]]
    )
    assert [saved.hex() for (saved,) in found] == [digest]
