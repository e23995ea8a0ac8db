"""Bodies that break one rule each, also for a deployment with another whitelist; `corpus.py` has more."""

import json
from collections.abc import Mapping
from string import Template
from typing import Any

from stackmgr.stacks.whitelist import Token, Whitelist

NOT_JSON = {
    "empty": b"",
    "an opening brace": b"{",
    "a repeated member": b'{"name":"a","name":"b"}',
    "NaN as name": b'{"name":NaN}',
    "a name in UTF-16": '{"name":"a"}'.encode("utf-16"),
    "invalid UTF-8": b'{"name":"\xff"}',
    "5000 opening brackets": b"[" * 5000,
}
NOT_AN_OBJECT = {"null": b"null", "an empty array": b"[]"}


def _item(address: str, weight: str) -> str:
    return f'{{"token_address":"{address}","weight_bps":{weight}}}'


def _one(address: str) -> str:
    return f"[{_item(address, '10000')}]"


def _two(first: str, second: str, address: str = "$second") -> str:
    return f"[{_item('$first', first)},{_item(address, second)}]"


# The field, and JSON texts of its value; $ marks an address that the whitelist supplies.
_NAMES = {
    "null name": "null",
    "number as name": "7",
    "empty name": '""',
    "spaces as name": r'" \t\n"',
    "U+2003 as name": r'"\u2003"',
    "NUL at the end of name": r'"a\u0000"',
    "lone high surrogate in name": r'"a\ud800"',
}
_ADDRESSES = {
    "wrong checksum": _one("$miscased"),
    "settlement asset in lowercase": _one("$settlement"),
    "zero address": _one("0x" + "0" * 40),
    "39 digits": _one("$short"),
    "no 0x": _one("$bare"),
}
# They total 10000 if the first one is taken for an integer.
_WEIGHTS = {
    "weight 1.0": _two("1.0", "9999"),
    "weight 1e2": _two("1e2", "9900"),
    'weight "1"': _two('"1"', "9999"),
    "weight true": _two("true", "9999"),
    "null weight": _two("null", "10000"),
    "negative weight": _two("-1", "10001"),
    "weight over 10000": _two("10001", "-1"),
}
_ALLOCATIONS = {
    "null allocation": "null",
    "empty allocation": "[]",
    "9999 in all": _two("6000", "3999"),
    "10001 in all": _two("6000", "4001"),
    "address twice": _two("6000", "4000", "$first"),
    "31 items": f"[{_item('$first', '10000')}{30 * (',' + _item('$first', '0'))}]",
    "symbol in an item": '[{"token_address":"$first","weight_bps":10000,"symbol":"AAPL"}]',
}
_SCHEDULES = {
    "null schedule": "null",
    "string as schedule": '"weekly"',
    "empty schedule": "{}",
    "null preset": '{"preset":null}',
    "unknown preset": '{"preset":"yearly"}',
    "capital in preset": '{"preset":"Weekly"}',
    "cron expression": '{"preset":"weekly","cron":"0 0 * * 1"}',
    "time zone": '{"preset":"weekly","timezone":"UTC"}',
}
_KINDS = {
    "name": ("name", _NAMES),
    "address": ("allocation", _ADDRESSES),
    "weight": ("allocation", _WEIGHTS),
    "allocation": ("allocation", _ALLOCATIONS),
    "schedule": ("schedule", _SCHEDULES),
    "id": ("id", {"the field id": '"x"'}),
    "manager_id": ("manager_id", {"the field manager_id": '"x"'}),
}


def cased_token(listed: Whitelist) -> Token:
    """Return a token whose two spellings differ."""
    return next(token for token in listed.tokens.values() if token.checksummed != token.address)


def bad_fields(listed: Whitelist, *kinds: str) -> dict[str, tuple[str, str]]:
    """Return invalid fields of these kinds, by default of all: a title, the field, and its JSON text."""
    first, second = sorted(listed.tokens)[:2]
    addresses = {
        "first": first,
        "second": second,
        "short": first[:-1],
        "bare": first[2:],
        "miscased": cased_token(listed).checksummed.swapcase().replace("X", "x"),
        "settlement": listed.settlement.address,
    }
    return {
        title: (field, Template(text).substitute(addresses))
        for field, texts in (_KINDS[kind] for kind in kinds or _KINDS)
        for title, text in texts.items()
    }


def body_with(valid: Mapping[str, Any], field: str, text: str) -> bytes:
    """Return the body *valid* in which *field* has the JSON text *text*, sent unchanged, as its value."""
    members = {name: json.dumps(value) for name, value in valid.items()} | {field: text}
    body = ",".join(f"{json.dumps(name)}:{value}" for name, value in members.items())
    return f"{{{body}}}".encode("utf-8", "surrogatepass")
