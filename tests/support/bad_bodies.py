"""Bodies that the service rejects: not JSON, not a configuration, or with one invalid field."""

import json
import sys
from collections.abc import Mapping
from typing import Any

from stackmgr import paths
from stackmgr.stacks import whitelist
from stackmgr.stacks.eip55 import eip55
from tests.support.examples import ADDRESSES, CHANGED, CONFIGURATION, allocation, spread

_SHIPPED = whitelist.load(paths.DEFAULT_WHITELIST)
_FIRST, _SECOND, _THIRD = ADDRESSES[:3]
_CASED = eip55(_FIRST)
# The one shipped token whose EIP-55 spelling holds no capital letter.
_UNCASED = next(address for address in ADDRESSES if eip55(address) == address)
GOOD = json.dumps(CONFIGURATION).encode()
# What is blank.
SPACES = "".join(filter(str.isspace, map(chr, range(sys.maxunicode + 1))))


def body_with(valid: Mapping[str, Any], field: str, text: str) -> bytes:
    """Return the body *valid* in which *field* has the JSON text *text*, sent unchanged, as its value."""
    members = {name: json.dumps(value) for name, value in valid.items()} | {field: text}
    body = ",".join(f"{json.dumps(name)}:{value}" for name, value in members.items())
    return f"{{{body}}}".encode("utf-8", "surrogatepass")


def field_text(name: str, text: str) -> bytes:
    return body_with(CONFIGURATION, name, text)


def two_weights(first: str, second: str) -> str:
    item = '{{"token_address":"{}","weight_bps":{}}}'.format
    return f"[{item(ADDRESSES[0], first)},{item(ADDRESSES[1], second)}]"


def _name(text: str) -> bytes:
    return field_text("name", text)


def _twice(member: str, value: str) -> bytes:
    return GOOD.replace(f'"{member}"'.encode(), f'"{member}": "{value}", "{member}"'.encode(), 1)


NOT_JSON: dict[str, bytes] = {
    "empty": b"", "whitespace": b" \r\n\t", "a NUL": b"\0", "an opening brace": b"{",
    "no closing brace": GOOD[:-1], "a second document": GOOD * 2, "a NUL after the document": GOOD + b"\0",
    "a comma before the brace": GOOD[:-1] + b",}", "a comment": GOOD + b"/* weekly */",
    "form feed as whitespace": b"\x0c" + GOOD, "byte order mark": b"\xef\xbb\xbf" + GOOD,
    **{name: GOOD.decode().encode(name) for name in ("utf-16", "utf-16-le", "utf-32")},
    "invalid UTF-8": b'{"name":"\xff"}', "Latin-1": _name('"Caf\xe9"').decode().encode("latin-1"),
    "cut inside a character": _name('"Caf\xe9"').replace(b"\xa9", b""),
    "an overlong encoding": _name('"A"').replace(b"A", b"\xc1\x81"),
    "an encoded lone surrogate": _name('"\ud800"'),
    "beyond U+10FFFF": _name('"A"').replace(b'"A"', b'"\xf4\x90\x80\x80"'),
    "a raw line feed in a string": _name('"a\nb"'), "a raw NUL in a string": _name('"a\0b"'),
    "an unknown escape": _name(r'"\x41"'), "an unclosed string": _name('"Growth'),
    "NaN as name": _name("NaN"),
    **{
        f"as weight: {text[:9]}": field_text("allocation", two_weights("10000", text))
        for text in (
            *("NaN", "Infinity", "-Infinity", "05000", "0x1388", "5000.", "\u0665\u0660", "9" * 5000),
            "-" + "9" * 5000,
        )
    },
    "arrays 100000 deep": b"[" * 100_000 + b"]" * 100_000,
    "arrays 100000 deep in a field": _name("[" * 100_000 + "]" * 100_000),
    "objects 40000 deep": b'{"a":' * 40_000 + b"1" + b"}" * 40_000, "4000 opening brackets": b"[" * 4000,
    "a repeated member": b'{"name":"a","name":"b"}', "name twice": _twice("name", "Growth"),
    "name twice, once by an escape": GOOD.replace(b'"name"', rb'"n\u0061me": "Growth", "name"'),
    "preset twice": _twice("preset", "weekly"), "address twice in an item": _twice("token_address", _FIRST),
}  # fmt: skip
NOT_AN_OBJECT: dict[str, bytes] = {
    "null": b"null", "true": b"true", "a string": json.dumps(GOOD.decode()).encode(),
    "an empty array": b"[]", "an array of a good body": b"[" + GOOD + b"]",
    "arrays 500 deep": b"[" * 500 + b"]" * 500,
}  # fmt: skip
_NAMES: dict[str, Any] = {
    "null name": None, "number as name": 7, "true as name": True, "empty name": "",
    "spaces as name": " \t\n", "every space there is as name": SPACES, "NUL as name": "\0",
    "NUL at the end of name": "a\0", "NUL in name": "a\0b", "lone high surrogate in name": "a\ud800",
    "lone low surrogate in name": "\udfff", "surrogates in the wrong order": "\ude00\ud83d",
} | {f"U+{ord(space):04X} as name": space for space in SPACES}  # fmt: skip
# Each is followed by what would bring the total to 10000 if it were taken for an integer.
_WEIGHTS = {
    "1.0": "9999", "10000.0": "0", "1e2": "9900", "1E4": "0", "10000e-4": "9999", "0.5": "9999.5",
    "-0.0": "10000", "0e0": "10000", "1e999": "0", "-1e999": "10000", '"1"': "9999", '""': "10000",
    "true": "9999", "false": "10000", "null": "10000", "[1]": "9999", "{}": "10000", "-1": "10001",
    "10001": "-1", "9" * 4000: "0", str(2**64 + 1): "9999",
}  # fmt: skip
_SCHEDULES: dict[str, Any] = {
    "null schedule": None, "string as schedule": "weekly", "array as schedule": ["weekly"],
    "empty schedule": {}, "cron expression": {"preset": "weekly", "cron": "0 0 * * 1"},
    "time zone": {"preset": "weekly", "timezone": "UTC"},
    "lone surrogate in a schedule": {"preset": "weekly", "\ud800": 1},
    **{
        f"preset {preset!a}": {"preset": preset}
        for preset in (None, 1, ["weekly"], "", "yearly", "Weekly", "weekly ", "weekly\n", "0 0 * * 1")
    },
}  # fmt: skip


def _swapped(address: str, position: int) -> str:
    return address[:position] + address[position].swapcase() + address[position + 1 :]


# Each stands where a spelling of a token would make the allocation good.
_ADDRESSES: dict[str, Any] = {
    "null address": None, "number as address": int(_FIRST, 16), "empty address": "",
    "symbol as address": "AAPL", "no 0x": _FIRST[2:], "capital X": "0X" + _FIRST[2:],
    "capital X, checksummed": "0X" + _CASED[2:], "39 digits": _FIRST[:-1], "41 digits": _FIRST + "0",
    "line feed at the end": _FIRST + "\n", "line feed after the checksummed": _CASED + "\n",
    "space in front": " " + _FIRST, "space at the end": _FIRST + " ", "NUL at the end": _FIRST + "\0",
    "fullwidth digit": _FIRST[:-1] + "\uff15", "not hexadecimal": _FIRST[:-1] + "g",
    "wrong checksum": "0x" + _CASED[2:].swapcase(), "zero address": "0x" + "0" * 40,
    "settlement asset": _SHIPPED.settlement.checksummed,
    "settlement asset in lowercase": _SHIPPED.settlement.address, "unlisted token": "0x" + "1" * 40,
    **{f"{each} in capitals": "0x" + each[2:].upper() for each in ADDRESSES},
    **{
        f"wrong case of digit {position - 1} of {each}": _swapped(each, position)
        for each in (_CASED, _UNCASED)
        for position in range(2, 42)
        if each[position].isalpha()
    },
}  # fmt: skip
_ITEM = {"token_address": _FIRST, "weight_bps": 10000}
_ALLOCATIONS: dict[str, Any] = {
    "null allocation": None, "object as allocation": _ITEM, "map as allocation": {_FIRST: 10000},
    "string as allocation": _FIRST, "empty allocation": [], "null item": [_ITEM, None],
    "array as item": [[_FIRST, 10000]], "empty item": [_ITEM, {}], "no address": [_ITEM, {"weight_bps": 0}],
    "no weight": [_ITEM, {"token_address": _SECOND}], "symbol in an item": [_ITEM | {"symbol": "AAPL"}],
    "price in an item": [_ITEM | {"price": None}],
    "address twice": allocation((_FIRST, 6000), (_FIRST, 4000)),
    "address twice, all weight first": allocation((_FIRST, 10000), (_FIRST, 0)),
    "address twice, all weight last": allocation((_FIRST, 0), (_FIRST, 10000)),
    "address twice, in two spellings": allocation((_FIRST, 5000), (_CASED, 5000)),
    "address twice, in two spellings, all weight last": allocation((_CASED, 0), (_FIRST, 10000)),
    "31 items, of 30 tokens": [*spread(ADDRESSES), _ITEM | {"weight_bps": 0}],
    "9999 in all": allocation((_FIRST, 6000), (_SECOND, 3999)),
    "10001 in all": allocation((_FIRST, 6000), (_SECOND, 4001)),
    "20000 in all": allocation((_FIRST, 10000), (_SECOND, 10000)),
    "nothing in all": allocation((_FIRST, 0), (_SECOND, 0)),
    "negative weight among others": allocation((_FIRST, 10000), (_SECOND, -1), (_THIRD, 1)),
}  # fmt: skip
_UNKNOWN: dict[str, Any] = {
    **dict.fromkeys(("id", "current_revision_id", "manager_id"), "00000000-0000-4000-8000-000000000000"),
    **dict.fromkeys(("Name", "name ", ""), "Growth"), "note": None, "\udead": "lone surrogate",
}  # fmt: skip
_VALUES = (
    ("name", _NAMES), ("schedule", _SCHEDULES), ("allocation", _ALLOCATIONS),
    ("allocation", {title: [_ITEM | {"token_address": each}] for title, each in _ADDRESSES.items()}),
    *((name, {f"unknown field {name!a}": value}) for name, value in _UNKNOWN.items()),
)  # fmt: skip
# The field and its JSON text.
FAULTS: dict[str, tuple[str, str]] = {
    title: (field, json.dumps(value)) for field, values in _VALUES for title, value in values.items()
} | {f"weight {text[:9]}": ("allocation", two_weights(text, rest)) for text, rest in _WEIGHTS.items()}
# The bodies of a create and an update for each title.
BODIES = {title: (body, body) for title, body in (NOT_JSON | NOT_AN_OBJECT).items()}
for _title, (_field, _text) in FAULTS.items():
    BODIES[_title] = field_text(_field, _text), body_with(CHANGED, _field, _text)
for _field in CONFIGURATION:
    _body = json.dumps({name: value for name, value in CONFIGURATION.items() if name != _field}).encode()
    BODIES[f"no {_field}, or no field"] = _body, b"{}"
BODIES["only an unknown field"] = (b'{"id":"00000000-0000-4000-8000-000000000000"}',) * 2
# The slug of the reason.
REASONS: dict[str, str] = {
    "invalid UTF-8": "not_utf8", "an opening brace": "not_json", "a repeated member": "repeated_member",
    "null": "body_null", "true": "body_type", "an empty array": "body_type",
    "unknown field 'id'": "body_unknown_field", "null name": "name_null", "number as name": "name_type",
    "empty name": "name_empty", "spaces as name": "name_blank", "NUL at the end of name": "name_nul",
    "lone high surrogate in name": "name_surrogate", "null allocation": "allocation_null",
    "object as allocation": "allocation_type", "empty allocation": "allocation_empty",
    "9999 in all": "weights_total", "31 items, of 30 tokens": "allocation_too_long",
    "null item": "allocation_item_null", "array as item": "allocation_item_type",
    "no weight": "allocation_item_missing_field", "symbol in an item": "allocation_item_unknown_field",
    "null address": "token_address_null", "number as address": "token_address_type",
    "39 digits": "token_address_form", "41 digits": "token_address_form", "wrong checksum": "token_checksum",
    "settlement asset in lowercase": "token_not_whitelisted",
    "address twice, in two spellings": "token_repeated", "weight null": "weight_bps_null",
    "weight 1.0": "weight_bps_type", "weight true": "weight_bps_type", 'weight "1"': "weight_bps_type",
    "weight 10001": "weight_bps_range", "null schedule": "schedule_null",
    "string as schedule": "schedule_type", "empty schedule": "schedule_missing_field",
    "cron expression": "schedule_unknown_field", "preset None": "preset_null", "preset 1": "preset_type",
    "preset 'Weekly'": "preset_unknown",
}  # fmt: skip
