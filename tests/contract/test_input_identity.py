"""Two creates with one Idempotency-Key: names that differ little, and the digest of an input."""

import json

import psycopg
import pytest

from stackmgr.stacks.configuration import Configuration
from stackmgr.stacks.eip55 import eip55
from tests.support.corpus import field_text


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
