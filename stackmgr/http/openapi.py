"""The description of the interface as one document, for client generators and other readers of OpenAPI.

`schemas/openapi.json` refers to the schemas that the service itself compiles.  Not every tool follows
references into other files or knows their dialect, so here each of them becomes a named component.
"""

from typing import Any

from stackmgr.http.validation import Document, read_schema, resolve_reference


def _component_name(reference: str) -> str:
    """Return `WeightBps` for `stack_parts.json#/definitions/weight_bps`, `Stack` for `stack.json`."""
    words = reference.rpartition("/")[2].removesuffix(".json").split("_")
    return "".join(word.capitalize() for word in words)


def _bundled(node: Any, components: Document) -> Any:
    """Return *node* with every reference into a file led to *components*, which are added to."""
    if isinstance(node, list):
        return [_bundled(item, components) for item in node]
    if not isinstance(node, dict):
        return node
    reference = node.get("$ref", "#")
    if reference.startswith("#"):
        return {name: _bundled(value, components) for name, value in node.items()}
    name = _component_name(reference)
    if name not in components:
        components[name] = {}
        components[name] = _bundled(resolve_reference(reference), components)
    return node | {"$ref": f"#/components/schemas/{name}"}


def bundle() -> Document:
    """Return the description of the interface, complete in itself."""
    schemas: Document = {}
    document: Document = _bundled(read_schema("openapi.json"), schemas)
    document["components"]["schemas"] = dict(sorted(schemas.items()))
    return document
