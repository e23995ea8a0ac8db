"""Parse request bodies and validate them against the JSON Schemas.

The schemas are draft-04, in which 1.0 is not an integer, and are compiled once.  JSON is parsed more strictly
than by the standard library's defaults: no NaN, no repeated member, UTF-8 only.
"""

import json
import re
from collections.abc import Callable
from typing import Any

import fastjsonschema

from stackmgr import paths
from stackmgr.errors import InvalidBody, InvalidConfiguration

Document = dict[str, Any]

_SIBLING_FILE = re.compile(r"\w+\.json")

# Members that describe a schema file.  They are dropped where a part of it is inlined elsewhere.
_FILE_MEMBERS = ("$schema", "id", "definitions")

# Whatever its size, a valid body has at most 98 strings, and outside them 92 commas and 33 brackets.
# Up to _COUNTED_BYTES, which are parsed in 0.1 ms, nothing is counted.
_COUNTED_BYTES = 4096
_MAX_STRUCTURE = 1000
_MAX_DIGITS = 4300  # of an integer: int() rejects longer ones

# The ending of a slug for each keyword of the schemas.
_KEYWORD_SLUGS = {
    "additionalProperties": "unknown_field",
    "enum": "unknown",
    "maxItems": "too_long",
    "maximum": "range",
    "minItems": "empty",
    "minLength": "empty",
    "minProperties": "empty",
    "minimum": "range",
    "pattern": "form",
    "required": "missing_field",
    "type": "type",
}


def read_schema(name: str) -> Document:
    """Return the schema document `schemas/<name>`."""
    document: Document = json.loads((paths.directory("schemas") / name).read_bytes())
    return document


def resolve_reference(reference: str) -> Document:
    """Return the schema that *reference* names: a file of `schemas`, or a part of one."""
    file_name, _, pointer = reference.partition("#/")
    if not _SIBLING_FILE.fullmatch(file_name):
        raise ValueError(f"a schema may refer to files of its own folder only, not to {reference}")
    schema = read_schema(file_name)
    for member in filter(None, pointer.split("/")):
        schema = schema[member]
    return {name: value for name, value in schema.items() if name not in _FILE_MEMBERS}


def inline_references(node: Any) -> Any:
    """Return *node* with each reference replaced by its target, so that it compiles to one function."""
    if isinstance(node, list):
        return [inline_references(item) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        return inline_references(resolve_reference(node["$ref"]))
    return {name: inline_references(value) for name, value in node.items()}


def compile_schema(name: str) -> Callable[[Any], Any]:
    """Return the compiled validator of `schemas/<name>`.  It raises JsonSchemaValueException."""
    validator: Callable[[Any], Any] = fastjsonschema.compile(
        inline_references(read_schema(name)), use_default=False
    )
    return validator


def _unique_members(pairs: list[tuple[str, Any]]) -> Document:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise InvalidBody("repeated_member")
    return document


def _reject_constant(_: str) -> None:
    raise ValueError("not a JSON number")


# Both read the first 20 characters: enough for the range of a weight, and to convert more would take long.


def _parse_integer(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise ValueError("too many digits")
    return int(text[:20])


def _parse_fraction(text: str) -> float:
    return float(text[:20].rstrip("eE+-"))


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique_members,
    parse_constant=_reject_constant,
    parse_float=_parse_fraction,
    parse_int=_parse_integer,
)


def _check_structure(body: bytes) -> None:
    """Reject what has more structure than any valid body, by searches for single bytes.

    Parsing 256 KiB of brackets would take the worker's thread 0.1 s.  This takes up to 1 ms.
    """
    if b"\\" in body:
        body = body.replace(rb"\\", b"").replace(rb"\"", b"")
    pieces = body.split(b'"', _MAX_STRUCTURE)
    outside = b"".join(pieces[::2])
    commas, brackets = outside.count(b","), outside.count(b"[") + outside.count(b"{")
    if max(len(pieces), commas + brackets) <= _MAX_STRUCTURE:
        return
    if brackets > 2 * commas:
        raise InvalidBody("not_json")  # RFC 8259 section 9 allows a bound on nesting
    raise InvalidConfiguration("body_structure")


def parse_json(body: bytes) -> Any:
    """Return the document in *body*.

    Raises InvalidBody, and InvalidConfiguration for a document too large to be parsed for a closer reason.
    """
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as ex:
        raise InvalidBody("not_utf8") from ex
    if len(body) > _COUNTED_BYTES:
        _check_structure(body)
    try:
        return _DECODER.decode(text)
    except (ValueError, RecursionError) as ex:
        raise InvalidBody("not_json") from ex


def rule_slug(path: list[str], keyword: str, value: Any) -> str:
    """Return the slug of a broken rule, as `weight_bps_range`, `schedule_null` or `body_unknown_field`.

    *path* leads from the body to the *value* that breaks *keyword*.  It consists of names from the schema and
    of array indexes, so that no part of a slug comes from the request.
    """
    field = path[-1] if path else "body"
    if field.isdigit():
        field = f"{path[-2]}_item"
    ending = "null" if keyword == "type" and value is None else _KEYWORD_SLUGS[keyword]
    return f"{field}_{ending}"


class RequestSchema:
    """One compiled request schema."""

    def __init__(self, name: str) -> None:
        self._validate = compile_schema(name)

    def parse(self, body: bytes) -> Document:
        """Return the document in *body*.  Raises InvalidBody or InvalidConfiguration."""
        document: Document = parse_json(body)
        try:
            self._validate(document)
        except fastjsonschema.JsonSchemaValueException as ex:
            # The exception holds the invalid value.  Its path starts with the name of the document.
            raise InvalidConfiguration(rule_slug(ex.path[1:], str(ex.rule), ex.value)) from ex
        return document
