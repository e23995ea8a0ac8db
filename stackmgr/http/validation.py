"""From bytes to a document that a JSON Schema accepts.

The schemas are draft-04, where 1.0 is not an integer, and are compiled once.  JSON itself is read more
strictly than the standard library does by default: no NaN, no repeated member, nothing but UTF-8.
"""

import json
import re
from collections.abc import Callable
from typing import Any

import fastjsonschema

from stackmgr import paths
from stackmgr.errors import InvalidBody, InvalidConfiguration

Document = dict[str, Any]

_NEIGHBOUR = re.compile(r"\w+\.json")

# What says which file of which dialect a schema is: of no use to a part of it elsewhere.
_OF_A_FILE = ("$schema", "id", "definitions")


def read_schema(name: str) -> Document:
    """Return the schema document `schemas/<name>`."""
    document: Document = json.loads((paths.directory("schemas") / name).read_bytes())
    return document


def resolve_reference(reference: str) -> Document:
    """Return the schema that *reference* stands for, a file of `schemas` or a part of one."""
    file_name, _, pointer = reference.partition("#/")
    if not _NEIGHBOUR.fullmatch(file_name):
        raise ValueError(f"a schema may refer to its neighbours only, not to {reference}")
    schema = read_schema(file_name)
    for member in filter(None, pointer.split("/")):
        schema = schema[member]
    return {name: value for name, value in schema.items() if name not in _OF_A_FILE}


def _inlined(node: Any) -> Any:
    """Return *node* with what they stand for in place of references: one function, and not one for each."""
    if isinstance(node, list):
        return [_inlined(item) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        return _inlined(resolve_reference(node["$ref"]))
    return {name: _inlined(value) for name, value in node.items()}


def compile_schema(name: str) -> Callable[[Any], Any]:
    """Return the compiled validator of `schemas/<name>`; it raises JsonSchemaValueException."""
    validator: Callable[[Any], Any] = fastjsonschema.compile(
        _inlined(read_schema(name)), use_default=False, detailed_exceptions=False
    )
    return validator


def _unique_members(pairs: list[tuple[str, Any]]) -> Document:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("repeated member")
    return document


def _no_constant(_: str) -> None:
    raise ValueError("not a JSON number")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique_members, parse_constant=_no_constant)


def parse_json(body: bytes) -> Any:
    """Return the document in *body*.  Raises InvalidBody."""
    try:
        return _DECODER.decode(body.decode("utf-8"))
    except (ValueError, RecursionError) as ex:
        raise InvalidBody("not_json") from ex


class RequestSchema:
    """One compiled request schema."""

    def __init__(self, name: str) -> None:
        self._validate = compile_schema(name)

    def read(self, body: bytes) -> Document:
        """Return the document in *body*.  Raises InvalidBody or InvalidConfiguration."""
        document = parse_json(body)
        try:
            self._validate(document)
        except fastjsonschema.JsonSchemaValueException as ex:
            # The exception holds the offending value: only the name of the broken keyword goes on.
            raise InvalidConfiguration("schema") from ex
        accepted: Document = document
        return accepted
