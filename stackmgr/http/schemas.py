"""The documents of `schemas/`: read them, and resolve the references between them."""

import json
import re
from typing import Any

from stackmgr import paths

Document = dict[str, Any]

_SIBLING_FILE = re.compile(r"\w+\.json")

# Members that describe a schema file.  They are dropped where a part of it is inlined elsewhere.
_FILE_MEMBERS = ("$schema", "id", "definitions")


def read_schema(name: str) -> Document:
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
    """Return *node* with each reference replaced by its target: it compiles to one function."""
    if isinstance(node, list):
        return [inline_references(item) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        return inline_references(resolve_reference(node["$ref"]))
    return {name: inline_references(value) for name, value in node.items()}
