"""The types of a configuration: values they reject."""

import json
import sys

import psycopg
import pytest

from tests.support import examples
from tests.support.examples import ADDRESSES

ONE, TWO = ADDRESSES[:2]
BLANK = b"""
SELECT code FROM generate_series(1, 1114111) AS code
WHERE code NOT BETWEEN 55296 AND 57343 AND stackmgr.name_is_blank(chr(code))
"""


def allocation(*items: tuple[str, object]) -> str:
    return json.dumps(examples.allocation(*items), separators=(",", ":"))


def test_postgresql_and_python_agree_on_blank(admin):
    in_postgresql = {code for (code,) in admin.execute(BLANK)}
    assert in_postgresql == {code for code in range(sys.maxunicode + 1) if chr(code).isspace()}


ABNORMAL = {
    "no items": "[]", "an object": "{}", "null": "null", "a list of lists": "[[]]", "an empty item": "[{}]",
    "31 items": allocation(*((f"0x{n:040x}", 0) for n in range(30)), ("0x" + "f" * 40, 10000)),
    "unsorted": allocation((TWO, 4000), (ONE, 6000)),
    "twice the same address": allocation((ONE, 4000), (ONE, 6000)),
    "total below": allocation((ONE, 4000), (TWO, 5999)),
    "total above": allocation((ONE, 4001), (TWO, 6000)), "weight 10001": allocation((ONE, 10001)),
    "negative weight": allocation((ONE, 10001), (TWO, -1)),
    "weights beyond an integer": allocation((ONE, 2**31 - 1), (TWO, 10000)),
    "a weight beyond an integer": allocation((ONE, 10**30)), "fraction": allocation((ONE, 10000.0)),
    "weight as text": allocation((ONE, "10000")), "no weight": allocation((ONE, None)),
    "weight true": allocation((ONE, True)), "exponent": allocation((ONE, 10000)).replace("10000", "1e4"),
    "uppercase address": allocation((ONE.upper().replace("X", "x"), 10000)),
    "no 0x": allocation((ONE[2:], 10000)), "39 digits": allocation((ONE[:-1], 10000)),
    "41 digits": allocation((ONE + "0", 10000)), "not hexadecimal": allocation((ONE[:-1] + "g", 10000)),
    "a space": allocation((ONE, 10000)).replace(",", ", "), "a line feed": allocation((ONE, 10000)) + "\n",
    "members the other way round": f'[{{"weight_bps":10000,"token_address":"{ONE}"}}]',
    "a member too many": allocation((ONE, 10000)).replace("}", ',"x":1}'),
    "a member too few": f'[{{"token_address":"{ONE}"}}]',
    "an escape": allocation((ONE, 10000)).replace('"0x', '"\\u0030x'),
}  # fmt: skip


@pytest.mark.parametrize("text", ABNORMAL.values(), ids=ABNORMAL)
def test_only_the_normal_form_is_stored(admin, text):
    with pytest.raises(psycopg.errors.CheckViolation) as error:
        admin.execute("SELECT %s::stackmgr.allocation", (text,))
    assert error.value.diag.constraint_name == "allocation_is_normalised"
