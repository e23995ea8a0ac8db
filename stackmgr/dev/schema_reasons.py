"""The reasons for which a request body breaks the rules of JSON and of its JSON Schema, each with its place.

The service stops at the first; these are all of them, in words, with the slugs of the request log.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from stackmgr.http.requests import rule_slug

Path = tuple[str | int, ...]

_LONGEST_QUOTE = 60
_LONGEST_INTEGER = 4300  # digits, beyond which Python's int() raises ValueError
_PLAIN_NAME = re.compile(r"[A-Za-z_][\w-]*", re.ASCII)
_TYPE_NAMES = {
    dict: "an object", list: "an array", str: "a string", bool: "a boolean",
    int: "an integer", float: "a number with a fraction or an exponent", type(None): "null",
}  # fmt: skip
_TYPES = {"object": dict, "array": list, "string": str, "integer": int}


@dataclass(frozen=True, slots=True)
class Reason:
    """One broken rule; `path` leads to the value, `rule` is the slug of the request log."""

    path: Path
    rule: str
    message: str

    @property
    def place(self) -> str:
        """The path as text, such as `allocation[0].token_address`; `$` is the body."""
        text = ""
        for step in self.path:
            if isinstance(step, int):
                text += f"[{step}]"
            elif _PLAIN_NAME.fullmatch(step) and len(step) <= _LONGEST_QUOTE:
                text += f".{step}" if text else step
            else:
                text += f"[{quoted(step)}]"
        return text or "$"


def quoted(value: Any) -> str:
    """Return *value* as JSON with readable letters, cut after some characters."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST_QUOTE else f"{text[:_LONGEST_QUOTE]}…"


class Unreadable:
    """A number that is not JSON or that no parser reads; reported at its position."""

    def __init__(self, message: str) -> None:
        self.message = message


class _Object(dict[str, Any]):
    """An object that remembers which members were repeated."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        names = [name for name, _ in pairs]
        self.repeated = (
            sorted({name for name in names if names.count(name) > 1}) if len(self) < len(names) else []
        )


def _integer(text: str) -> int | Unreadable:
    digits = len(text.lstrip("-"))
    return int(text) if digits <= _LONGEST_INTEGER else Unreadable(f"is an integer of {digits} digits")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_Object,
    parse_constant=lambda name: Unreadable(f"{name} is not a JSON number"),
    parse_int=_integer,
)


def syntax_and_schema(body: bytes, schema: dict[str, Any]) -> tuple[Any, list[Reason]]:
    """Return the document in *body*, read as far as a lenient parser can, and what is wrong with it.

    *schema* is a request schema without references.
    """
    try:
        document = _DECODER.decode(body.decode("utf-8"))
    except UnicodeDecodeError as ex:
        message = f"is not UTF-8: byte 0x{body[ex.start]:02x} at offset {ex.start}"
        return None, [Reason((), "not_utf8", message)]
    except json.JSONDecodeError as ex:
        message = f"line {ex.lineno} column {ex.colno}: {ex.msg}" if body.strip() else "is empty"
    except RecursionError:
        message = "is nested too deeply"
    else:
        return document, [*_json_reasons(document, ()), *schema_reasons(document, schema, ())]
    return None, [Reason((), "not_json", message)]


def _json_reasons(value: Any, path: Path) -> Iterator[Reason]:
    """Yield what the service does not accept as JSON, although a lenient parser does."""
    if isinstance(value, Unreadable):
        yield Reason(path, "not_json", value.message)
    elif isinstance(value, _Object):
        for name in value.repeated:
            yield Reason((*path, name), "repeated_member", "occurs more than once in its object")
        for name, member in value.items():
            yield from _json_reasons(member, (*path, name))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _json_reasons(item, (*path, index))


def schema_reasons(value: Any, schema: dict[str, Any], path: Path) -> Iterator[Reason]:
    """Yield every keyword of *schema* that *value* breaks."""
    if isinstance(value, Unreadable):
        return
    expected = schema.get("type", "object")
    if not isinstance(value, _TYPES[expected]) or isinstance(value, bool):
        found = next(name for kind, name in _TYPE_NAMES.items() if isinstance(value, kind))
        yield _reason(path, "type", value, f"must be {_TYPE_NAMES[_TYPES[expected]]}, not {found}")
        return
    for keyword, message in _broken_keywords(value, schema):
        yield _reason(path, keyword, value, message)
    if isinstance(value, dict):
        yield from _member_reasons(value, schema, path)
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from schema_reasons(item, schema["items"], (*path, index))


def _member_reasons(value: dict[str, Any], schema: dict[str, Any], path: Path) -> Iterator[Reason]:
    properties = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            yield Reason((*path, name), _slug(path, "required", value), "is missing")
    for name, member in value.items():
        if name in properties:
            yield from schema_reasons(member, properties[name], (*path, name))
        else:
            message = f"is an unknown field; known here: {', '.join(properties)}"
            yield Reason((*path, name), _slug(path, "additionalProperties", value), message)


def _broken_keywords(value: Any, schema: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the keywords about *value* itself that it breaks, each with a message."""
    limits = {keyword: schema.get(keyword) for keyword in ("minimum", "maximum")}
    if limits["minimum"] is not None and value < limits["minimum"]:
        yield "minimum", f"{quoted(value)} is less than {limits['minimum']}"
    if limits["maximum"] is not None and value > limits["maximum"]:
        yield "maximum", f"{quoted(value)} is more than {limits['maximum']}"
    if "enum" in schema and value not in schema["enum"]:
        yield "enum", f"{quoted(value)} is not one of {', '.join(schema['enum'])}"
    if "pattern" in schema and not re.search(schema["pattern"].replace("$", r"\Z"), value):
        yield "pattern", f"{quoted(value)} is not 0x and 40 hexadecimal digits"
    if isinstance(value, str) and len(value) < schema.get("minLength", 0):
        yield "minLength", "is empty"
    if isinstance(value, list) and len(value) < schema.get("minItems", 0):
        yield "minItems", "is empty"
    if isinstance(value, list) and len(value) > schema.get("maxItems", len(value)):
        yield "maxItems", f"has {len(value)} items, not 1 to {schema['maxItems']}"
    if isinstance(value, dict) and len(value) < schema.get("minProperties", 0):
        yield "minProperties", "is empty; at least one field is required"


def _slug(path: Path, keyword: str, value: Any) -> str:
    return rule_slug([str(step) for step in path], keyword, value)


def _reason(path: Path, keyword: str, value: Any, message: str) -> Reason:
    return Reason(path, _slug(path, keyword, value), message)
