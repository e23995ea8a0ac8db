"""Bodies that must be refused: what is not JSON, what is not a configuration, and what only looks like one.

`NOT_JSON` and `NOT_AN_OBJECT` hold complete bodies.  `FAULTS` holds single fields as (name, JSON text), which
make a create and an update invalid; each is valid but for this one fault.
"""

import json
from typing import Any

from stackmgr.stacks.eip55 import eip55
from tests.support.examples import ADDRESSES, CONFIGURATION, TOKENS, allocation, spread

FIRST, SECOND = ADDRESSES[:2]
CHECKSUMMED = eip55(FIRST)
# The one shipped token whose EIP-55 spelling holds no capital letter.
LLY = next(token["address"] for token in TOKENS if token["symbol"] == "LLY")
SETTLEMENT_ASSET = "0x5fc5360D0400a0Fd4f2af552ADD042D716F1d168"

GOOD = json.dumps(CONFIGURATION)


def field_text(name: str, value: str) -> bytes:
    """Return the create body in which field *name* is *value*, a JSON text sent unchanged."""
    members = {field: json.dumps(CONFIGURATION[field]) for field in CONFIGURATION} | {name: value}
    return ("{" + ",".join(f'"{field}":{text}' for field, text in members.items()) + "}").encode(
        "utf-8", "surrogatepass"
    )


def two_weights(first: str, second: str) -> str:
    """Return an allocation of two tokens with the given JSON texts as weights."""
    return (
        f'[{{"token_address":"{FIRST}","weight_bps":{first}}},'
        f'{{"token_address":"{SECOND}","weight_bps":{second}}}]'
    )


def _name(text: str) -> bytes:
    return field_text("name", text)


NOT_JSON: dict[str, bytes] = {
    "empty": b"",
    "whitespace": b" \r\n\t",
    "a NUL": b"\0",
    "no closing brace": GOOD[:-1].encode(),
    "a second document": GOOD.encode() * 2,
    "a NUL after the document": GOOD.encode() + b"\0",
    "a form": b"name=Growth&preset=weekly",
    "single quotes": GOOD.replace('"', "'").encode(),
    "a comma before the brace": GOOD[:-1].encode() + b",}",
    "a comma before the bracket": field_text("allocation", two_weights("5000", "5000")[:-1] + ",]"),
    "a comment": GOOD.encode() + b"/* weekly */",
    "an unquoted member": GOOD.replace('"name"', "name").encode(),
    "form feed as whitespace": b"\x0c" + GOOD.encode(),
    "no-break space as whitespace": "\xa0".encode() + GOOD.encode(),
    "byte order mark": b"\xef\xbb\xbf" + GOOD.encode(),
    "UTF-16": GOOD.encode("utf-16"),
    "UTF-16 without a mark": GOOD.encode("utf-16-le"),
    "UTF-32": GOOD.encode("utf-32"),
    "Latin-1": _name('"Caf\xe9"').decode().encode("latin-1"),
    "cut inside a character": _name('"Caf\xe9"').replace(b"\xa9", b""),
    "an overlong encoding": _name('"A"').replace(b"A", b"\xc1\x81"),
    "an encoded lone surrogate": _name('"\ud800"'),
    "an encoded surrogate pair": _name('"\ud83d\ude00"'),
    "beyond U+10FFFF": _name('"A"').replace(b'"A"', b'"\xf4\x90\x80\x80"'),
    "a raw line feed in a string": _name('"a\nb"'),
    "a raw NUL in a string": _name('"a\0b"'),
    "an unknown escape": _name(r'"\x41"'),
    "a short escape": _name(r'"\u004"'),
    "an unclosed string": _name('"Growth'),
    "NaN": field_text("allocation", two_weights("10000", "NaN")),
    "Infinity": field_text("allocation", two_weights("10000", "Infinity")),
    "minus Infinity": field_text("allocation", two_weights("10000", "-Infinity")),
    "a leading zero": field_text("allocation", two_weights("05000", "5000")),
    "a leading plus": field_text("allocation", two_weights("+5000", "5000")),
    "a hexadecimal number": field_text("allocation", two_weights("0x1388", "5000")),
    "a number ending in a point": field_text("allocation", two_weights("5000.", "5000")),
    "digits of another script": field_text("allocation", two_weights("\u0665\u0660\u0660\u0660", "5000")),
    "a number of 5000 digits": field_text("allocation", two_weights("9" * 5000, "0")),
    "arrays 100000 deep": b"[" * 100_000 + b"]" * 100_000,
    "arrays 100000 deep in a field": _name("[" * 100_000 + "]" * 100_000),
    "objects 40000 deep": b'{"a":' * 40_000 + b"1" + b"}" * 40_000,
    "100000 opening brackets": b"[" * 100_000,
    "name twice": GOOD.replace('"name"', '"name": "Growth", "name"').encode(),
    "name twice, once by an escape": GOOD.replace('"name"', r'"n\u0061me": "Growth", "name"').encode(),
    "allocation twice": GOOD.replace('"allocation"', '"allocation": [], "allocation"').encode(),
    "schedule twice": GOOD.replace('"schedule"', '"schedule": null, "schedule"').encode(),
    "preset twice": GOOD.replace('"preset"', '"preset": "weekly", "preset"').encode(),
    "address twice in an item": GOOD.replace(
        '"token_address"', f'"token_address": "{FIRST}", "token_address"', 1
    ).encode(),
    "weight twice in an item": GOOD.replace('"weight_bps"', '"weight_bps": 6000, "weight_bps"', 1).encode(),
}

NOT_AN_OBJECT: dict[str, bytes] = {
    "null": b"null",
    "true": b"true",
    "a number": b"10000",
    "a string": json.dumps(GOOD).encode(),
    "an empty array": b"[]",
    "an array of a good body": f"[{GOOD}]".encode(),
    "arrays 500 deep": b"[" * 500 + b"]" * 500,
}

# Everything str.isspace() holds for: the definition of blank, spelled out so that it cannot shift unseen.
SPACES = (
    "\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008"
    "\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
)

_NAMES: dict[str, Any] = {
    "null name": None,
    "empty name": "",
    "every space there is as name": SPACES,
    "NUL as name": "\0",
    "NUL in name": "a\0b",
    "NUL at the end of name": "Growth\0",
    "lone high surrogate in name": "a\ud800",
    "lone low surrogate in name": "\udfff",
    "surrogates in the wrong order": "\ude00\ud83d",
    "number as name": 1,
    "true as name": True,
    "array as name": ["Growth"],
    "object as name": {"en": "Growth"},
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
        "no 0x": FIRST[2:],
        "capital X": "0X" + FIRST[2:],
        "capital X, checksummed": "0X" + CHECKSUMMED[2:],
        "39 digits": FIRST[:-1],
        "41 digits": FIRST + "0",
        "line feed at the end": FIRST + "\n",
        "line feed after the checksummed": CHECKSUMMED + "\n",
        "space in front": " " + FIRST,
        "space at the end": FIRST + " ",
        "NUL at the end": FIRST + "\0",
        "fullwidth digit": FIRST.replace("5", "\uff15", 1),
        "not hexadecimal": FIRST[:-1] + "g",
        "zero address": "0x" + "0" * 40,
        "settlement asset": SETTLEMENT_ASSET,
        "settlement asset in lowercase": SETTLEMENT_ASSET.lower(),
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
    "null allocation": None,
    "empty allocation": [],
    "object as allocation": _ITEM,
    "map as allocation": {FIRST: 10000},
    "string as allocation": FIRST,
    "null item": [_ITEM, None],
    "array as item": [[FIRST, 10000]],
    "empty item": [_ITEM, {}],
    "no address": [_ITEM, {"weight_bps": 0}],
    "no weight": [_ITEM, {"token_address": SECOND}],
    "null weight": [_ITEM, {"token_address": SECOND, "weight_bps": None}],
    "symbol in an item": [_ITEM | {"symbol": "AAPL"}],
    "price in an item": [_ITEM | {"price": None}],
    "address twice": allocation((FIRST, 5000), (FIRST, 5000)),
    "address twice, in two spellings": allocation((FIRST, 5000), (CHECKSUMMED, 5000)),
    "address twice, all weight first": allocation((FIRST, 10000), (FIRST, 0)),
    "address twice, all weight last": allocation((FIRST, 0), (FIRST, 10000)),
    "address twice, in two spellings, all weight last": allocation((CHECKSUMMED, 0), (FIRST, 10000)),
    "31 items": [*spread(ADDRESSES), _ITEM | {"weight_bps": 0}],
    "9999 in all": allocation((FIRST, 4999), (SECOND, 5000)),
    "10001 in all": allocation((FIRST, 5001), (SECOND, 5000)),
    "20000 in all": allocation((FIRST, 10000), (SECOND, 10000)),
    "nothing in all": allocation((FIRST, 0), (SECOND, 0)),
    "negative weight": allocation((FIRST, 10000), (SECOND, -1), (ADDRESSES[2], 1)),
    "weight over 10000": allocation((FIRST, 10001), (SECOND, -1)),
}

# Every one is followed by what would bring the total to 10000 if it were taken for an integer.
_WEIGHTS = {
    "weight 1.0": ("1.0", "9999"),
    "weight 10000.0": ("10000.0", "0"),
    "weight 1e2": ("1e2", "9900"),
    "weight 1E4": ("1E4", "0"),
    "weight 10000e-4": ("10000e-4", "9999"),
    "weight 0.5": ("0.5", "9999.5"),
    "weight -0.0": ("-0.0", "10000"),
    "weight 0e0": ("0e0", "10000"),
    "weight 1e999": ("1e999", "0"),
    "weight -1e999": ("-1e999", "10000"),
    "weight true": ("true", "9999"),
    "weight false": ("false", "10000"),
    'weight "1"': ('"1"', "9999"),
    'weight ""': ('""', "10000"),
    "weight [1]": ("[1]", "9999"),
    "weight {}": ("{}", "10000"),
    "weight of 4000 digits": ("9" * 4000, "0"),
    "weight 2 to the 64th and more": (str(2**64 + 1), "9999"),
}

_SCHEDULES: dict[str, Any] = {
    "null schedule": None,
    "string as schedule": "weekly",
    "array as schedule": ["weekly"],
    "empty schedule": {},
    "null preset": {"preset": None},
    "number as preset": {"preset": 1},
    "array as preset": {"preset": ["weekly"]},
    "empty preset": {"preset": ""},
    "unknown preset": {"preset": "yearly"},
    "capital in preset": {"preset": "Weekly"},
    "space after preset": {"preset": "weekly "},
    "line feed after preset": {"preset": "weekly\n"},
    "cron expression as preset": {"preset": "0 0 * * 1"},
    "cron expression": {"preset": "weekly", "cron": "0 0 * * 1"},
    "time of day": {"preset": "weekly", "time": "09:30"},
    "time zone": {"preset": "weekly", "timezone": "UTC"},
    "null time zone": {"preset": "weekly", "timezone": None},
    "lone surrogate in a schedule": {"preset": "weekly", "\ud800": 1},
}

_UNKNOWN: dict[str, Any] = {
    "id": "00000000-0000-4000-8000-000000000000",
    "current_revision_id": "00000000-0000-4000-8000-000000000000",
    "manager_id": "00000000-0000-4000-8000-000000000000",
    "manager_name": "Somebody",
    "symbols": ["AAPL"],
    "prices": {"AAPL": 1},
    "Name": "Growth",
    "name ": "Growth",
    "": "Growth",
    "name\0": "Growth",
    "__proto__": {},
    "note": None,
    "\udead": "lone surrogate",
}

FAULTS: dict[str, tuple[str, str]] = (
    {title: ("name", json.dumps(value)) for title, value in _NAMES.items()}
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
