"""Bodies that the service rejects: not JSON, not a configuration, or with one invalid field."""

import json
from typing import Any

from stackmgr import paths
from stackmgr.stacks import whitelist
from stackmgr.stacks.eip55 import eip55
from tests.support import bad_bodies
from tests.support.bad_bodies import body_with
from tests.support.examples import ADDRESSES, CONFIGURATION, TOKENS, allocation, spread

FIRST, SECOND = ADDRESSES[:2]
CHECKSUMMED = eip55(FIRST)
# The one shipped token whose EIP-55 spelling holds no capital letter.
LLY = next(token["address"] for token in TOKENS if token["symbol"] == "LLY")
SETTLEMENT_ASSET = "0x5fc5360D0400a0Fd4f2af552ADD042D716F1d168"

GOOD = json.dumps(CONFIGURATION)


def field_text(name: str, value: str) -> bytes:
    """Return the create body in which field *name* is *value*, a JSON text sent unchanged."""
    return body_with(CONFIGURATION, name, value)


def two_weights(first: str, second: str) -> str:
    """Return an allocation of two tokens with the given JSON texts as weights."""
    return (
        f'[{{"token_address":"{FIRST}","weight_bps":{first}}},'
        f'{{"token_address":"{SECOND}","weight_bps":{second}}}]'
    )


def _name(text: str) -> bytes:
    return field_text("name", text)


NOT_JSON: dict[str, bytes] = bad_bodies.NOT_JSON | {
    "whitespace": b" \r\n\t",
    "a NUL": b"\0",
    "no closing brace": GOOD[:-1].encode(),
    "a second document": GOOD.encode() * 2,
    "a NUL after the document": GOOD.encode() + b"\0",
    "a comma before the brace": GOOD[:-1].encode() + b",}",
    "a comment": GOOD.encode() + b"/* weekly */",
    "form feed as whitespace": b"\x0c" + GOOD.encode(),
    "byte order mark": b"\xef\xbb\xbf" + GOOD.encode(),
    "UTF-16": GOOD.encode("utf-16"),
    "UTF-16 without a mark": GOOD.encode("utf-16-le"),
    "UTF-32": GOOD.encode("utf-32"),
    "Latin-1": _name('"Caf\xe9"').decode().encode("latin-1"),
    "cut inside a character": _name('"Caf\xe9"').replace(b"\xa9", b""),
    "an overlong encoding": _name('"A"').replace(b"A", b"\xc1\x81"),
    "an encoded lone surrogate": _name('"\ud800"'),
    "beyond U+10FFFF": _name('"A"').replace(b'"A"', b'"\xf4\x90\x80\x80"'),
    "a raw line feed in a string": _name('"a\nb"'),
    "a raw NUL in a string": _name('"a\0b"'),
    "an unknown escape": _name(r'"\x41"'),
    "an unclosed string": _name('"Growth'),
    "NaN": field_text("allocation", two_weights("10000", "NaN")),
    "Infinity": field_text("allocation", two_weights("10000", "Infinity")),
    "minus Infinity": field_text("allocation", two_weights("10000", "-Infinity")),
    "a leading zero": field_text("allocation", two_weights("05000", "5000")),
    "a hexadecimal number": field_text("allocation", two_weights("0x1388", "5000")),
    "a number ending in a point": field_text("allocation", two_weights("5000.", "5000")),
    "digits of another script": field_text("allocation", two_weights("\u0665\u0660\u0660\u0660", "5000")),
    "a number of 5000 digits": field_text("allocation", two_weights("9" * 5000, "0")),
    "a negative number of 5000 digits": field_text("allocation", two_weights("-" + "9" * 5000, "0")),
    "arrays 100000 deep": b"[" * 100_000 + b"]" * 100_000,
    "arrays 100000 deep in a field": _name("[" * 100_000 + "]" * 100_000),
    "objects 40000 deep": b'{"a":' * 40_000 + b"1" + b"}" * 40_000,
    "name twice": GOOD.replace('"name"', '"name": "Growth", "name"').encode(),
    "name twice, once by an escape": GOOD.replace('"name"', r'"n\u0061me": "Growth", "name"').encode(),
    "preset twice": GOOD.replace('"preset"', '"preset": "weekly", "preset"').encode(),
    "address twice in an item": GOOD.replace(
        '"token_address"', f'"token_address": "{FIRST}", "token_address"', 1
    ).encode(),
}

NOT_AN_OBJECT: dict[str, bytes] = bad_bodies.NOT_AN_OBJECT | {
    "true": b"true",
    "a string": json.dumps(GOOD).encode(),
    "an array of a good body": f"[{GOOD}]".encode(),
    "arrays 500 deep": b"[" * 500 + b"]" * 500,
}

# Everything str.isspace() holds for: the definition of blank, spelled out so that it cannot shift unseen.
SPACES = (
    "\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008"
    "\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
)

_NAMES: dict[str, Any] = {
    "every space there is as name": SPACES,
    "NUL as name": "\0",
    "NUL in name": "a\0b",
    "lone low surrogate in name": "\udfff",
    "surrogates in the wrong order": "\ude00\ud83d",
    "true as name": True,
} | {f"U+{ord(space):04X} as name": space for space in SPACES}


def _capital(address: str, position: int) -> str:
    return address[:position] + address[position].swapcase() + address[position + 1 :]


# Each stands where an accepted spelling would make the allocation good.
SPELLINGS: dict[str, Any] = (
    {
        "null address": None,
        "number as address": int(FIRST, 16),
        "empty address": "",
        "symbol as address": "AAPL",
        "capital X": "0X" + FIRST[2:],
        "capital X, checksummed": "0X" + CHECKSUMMED[2:],
        "41 digits": FIRST + "0",
        "line feed at the end": FIRST + "\n",
        "line feed after the checksummed": CHECKSUMMED + "\n",
        "space in front": " " + FIRST,
        "space at the end": FIRST + " ",
        "NUL at the end": FIRST + "\0",
        "fullwidth digit": FIRST.replace("5", "\uff15", 1),
        "not hexadecimal": FIRST[:-1] + "g",
        "settlement asset": SETTLEMENT_ASSET,
        "unlisted token": "0x" + "1" * 40,
    }
    | {f"{token['symbol']} in capitals": "0x" + token["address"][2:].upper() for token in TOKENS}
    | {
        f"wrong case of digit {position - 1}": _capital(CHECKSUMMED, position)
        for position in range(2, 42)
        if CHECKSUMMED[position].isalpha()
    }
    | {
        f"LLY with digit {position - 1} capital": _capital(LLY, position)
        for position in range(2, 42)
        if LLY[position].isalpha()
    }
)

_ITEM = {"token_address": FIRST, "weight_bps": 10000}
_ALLOCATIONS: dict[str, Any] = {
    "object as allocation": _ITEM,
    "map as allocation": {FIRST: 10000},
    "string as allocation": FIRST,
    "null item": [_ITEM, None],
    "array as item": [[FIRST, 10000]],
    "empty item": [_ITEM, {}],
    "no address": [_ITEM, {"weight_bps": 0}],
    "no weight": [_ITEM, {"token_address": SECOND}],
    "price in an item": [_ITEM | {"price": None}],
    "address twice, in two spellings": allocation((FIRST, 5000), (CHECKSUMMED, 5000)),
    "address twice, all weight first": allocation((FIRST, 10000), (FIRST, 0)),
    "address twice, all weight last": allocation((FIRST, 0), (FIRST, 10000)),
    "address twice, in two spellings, all weight last": allocation((CHECKSUMMED, 0), (FIRST, 10000)),
    "31 items, of 30 tokens": [*spread(ADDRESSES), _ITEM | {"weight_bps": 0}],
    "20000 in all": allocation((FIRST, 10000), (SECOND, 10000)),
    "nothing in all": allocation((FIRST, 0), (SECOND, 0)),
    "negative weight among others": allocation((FIRST, 10000), (SECOND, -1), (ADDRESSES[2], 1)),
}

# Every one is followed by what would bring the total to 10000 if it were taken for an integer.
_WEIGHTS = {
    "weight 10000.0": ("10000.0", "0"),
    "weight 1E4": ("1E4", "0"),
    "weight 10000e-4": ("10000e-4", "9999"),
    "weight 0.5": ("0.5", "9999.5"),
    "weight -0.0": ("-0.0", "10000"),
    "weight 0e0": ("0e0", "10000"),
    "weight 1e999": ("1e999", "0"),
    "weight -1e999": ("-1e999", "10000"),
    "weight false": ("false", "10000"),
    'weight ""': ('""', "10000"),
    "weight [1]": ("[1]", "9999"),
    "weight {}": ("{}", "10000"),
    "weight of 4000 digits": ("9" * 4000, "0"),
    "weight 2 to the 64th and more": (str(2**64 + 1), "9999"),
}

_SCHEDULES: dict[str, Any] = {
    "array as schedule": ["weekly"],
    "number as preset": {"preset": 1},
    "array as preset": {"preset": ["weekly"]},
    "empty preset": {"preset": ""},
    "space after preset": {"preset": "weekly "},
    "line feed after preset": {"preset": "weekly\n"},
    "cron expression as preset": {"preset": "0 0 * * 1"},
    "lone surrogate in a schedule": {"preset": "weekly", "\ud800": 1},
}

_UNKNOWN: dict[str, Any] = {
    "id": "00000000-0000-4000-8000-000000000000",
    "current_revision_id": "00000000-0000-4000-8000-000000000000",
    "manager_id": "00000000-0000-4000-8000-000000000000",
    "Name": "Growth",
    "name ": "Growth",
    "": "Growth",
    "note": None,
    "\udead": "lone surrogate",
}

# The field and its JSON text.
FAULTS: dict[str, tuple[str, str]] = (
    bad_bodies.bad_fields(whitelist.load(paths.default_whitelist()))
    | {title: ("name", json.dumps(value)) for title, value in _NAMES.items()}
    | {
        title: ("allocation", json.dumps([{"token_address": value, "weight_bps": 10000}]))
        for title, value in SPELLINGS.items()
    }
    | {title: ("allocation", json.dumps(value)) for title, value in _ALLOCATIONS.items()}
    | {title: ("allocation", two_weights(*weights)) for title, weights in _WEIGHTS.items()}
    | {title: ("schedule", json.dumps(value)) for title, value in _SCHEDULES.items()}
)

UNKNOWN_FIELDS: dict[str, bytes] = {
    f"unknown field {name!a}": json.dumps(CONFIGURATION | {name: value}).encode()
    for name, value in _UNKNOWN.items()
}

# The bodies of a create and an update for each title.
BODIES: dict[str, tuple[bytes, bytes]] = {
    title: (body, body) for title, body in (NOT_JSON | NOT_AN_OBJECT | UNKNOWN_FIELDS).items()
} | {
    title: (field_text(name, text), f'{{"{name}":{text}}}'.encode()) for title, (name, text) in FAULTS.items()
}

# The slug of the reason.
REASONS: dict[str, str] = {
    "null": "body_null",
    "true": "body_type",
    "an empty array": "body_type",
    "the field id": "body_unknown_field",
    "null name": "name_null",
    "number as name": "name_type",
    "empty name": "name_empty",
    "spaces as name": "name_blank",
    "NUL at the end of name": "name_nul",
    "lone high surrogate in name": "name_surrogate",
    "null allocation": "allocation_null",
    "object as allocation": "allocation_type",
    "empty allocation": "allocation_empty",
    "9999 in all": "weights_total",
    "31 items, of 30 tokens": "allocation_too_long",
    "null item": "allocation_item_null",
    "array as item": "allocation_item_type",
    "no weight": "allocation_item_missing_field",
    "symbol in an item": "allocation_item_unknown_field",
    "null address": "token_address_null",
    "number as address": "token_address_type",
    "39 digits": "token_address_form",
    "wrong checksum": "token_checksum",
    "settlement asset in lowercase": "token_not_whitelisted",
    "address twice, in two spellings": "token_repeated",
    "null weight": "weight_bps_null",
    "weight 1.0": "weight_bps_type",
    "weight true": "weight_bps_type",
    'weight "1"': "weight_bps_type",
    "weight over 10000": "weight_bps_range",
    "null schedule": "schedule_null",
    "string as schedule": "schedule_type",
    "empty schedule": "schedule_missing_field",
    "cron expression": "schedule_unknown_field",
    "null preset": "preset_null",
    "number as preset": "preset_type",
    "capital in preset": "preset_unknown",
}
