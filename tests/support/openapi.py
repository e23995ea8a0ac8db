"""The OpenAPI document by operation."""

import runpy
from collections.abc import Iterator
from typing import Any

import jsonschema

from stackmgr import paths

SCRIPT = str(paths.directory("deploy") / "reference.py")
reference = runpy.run_path(SCRIPT)
BUNDLE = reference["bundle"]()


def resolved(node: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in node:
        target: Any = BUNDLE
        for member in node["$ref"].removeprefix("#/").split("/"):
            target = target[member]
        node = target
    return node


def nodes(node: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(node, dict):
        yield path, node
        for name, child in node.items():
            yield from nodes(child, f"{path}/{name}")
    if isinstance(node, list):
        for number, child in enumerate(node):
            yield from nodes(child, f"{path}/{number}")


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in BUNDLE["paths"].items():
        for method, operation in item.items():
            yield path, method.upper(), operation


OPERATIONS = {operation["operationId"]: operation for _, _, operation in operations()}


def response(operation_id: str, status: str) -> dict[str, Any]:
    return resolved(OPERATIONS[operation_id]["responses"][status])


def check(schema: dict[str, Any], document: Any) -> None:
    """Raise jsonschema.ValidationError unless *schema*, a part of the bundle, accepts *document*."""
    validator = jsonschema.Draft202012Validator({**schema, "components": BUNDLE["components"]})
    validator.validate(document)
