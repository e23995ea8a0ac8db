"""`stackmgr openapi`: the OpenAPI document bundled into one, for client generators and other tools.


`schemas/openapi.json` refers to the schemas that the service compiles.  Not every tool resolves references
to other files or supports their dialect, so each of them becomes a named component.  `schemas/guide.md` and
`schemas/samples/` hold what is easier to write and to run outside a JSON file.
"""

import argparse
from typing import Any

from stackmgr import paths
from stackmgr.commands.command import NOTHING, Command
from stackmgr.commands.output import print_json
from stackmgr.http.schemas import Document, read_schema, resolve_reference

# Language and suffix of each sample in schemas/samples.
_SAMPLE_LANGUAGES = {"Shell": "sh", "Python": "py", "JavaScript": "mjs"}


def _component_name(reference: str) -> str:
    """Return `WeightBps` for `stack_parts.json#/definitions/weight_bps`, `Stack` for `stack.json`."""
    words = reference.rpartition("/")[2].removesuffix(".json").split("_")
    return "".join(word.capitalize() for word in words)


def _bundle(node: Any, components: Document) -> Any:
    """Return *node* with every reference to a file replaced by one to *components*, extending those."""
    if isinstance(node, list):
        return [_bundle(item, components) for item in node]
    if not isinstance(node, dict):
        return node
    reference = node.get("$ref", "#")
    if reference.startswith("#"):
        return {name: _bundle(value, components) for name, value in node.items()}
    name = _component_name(reference)
    if name not in components:
        components[name] = {}
        components[name] = _bundle(resolve_reference(reference), components)
    return node | {"$ref": f"#/components/schemas/{name}"}


def _code_samples(operation_id: str) -> list[dict[str, str]]:
    """Return the samples of an operation in the form that API reference renderers expect."""
    folder = paths.directory("schemas") / "samples"
    return [
        {"lang": language, "source": (folder / f"{operation_id}.{suffix}").read_text(encoding="utf-8")}
        for language, suffix in _SAMPLE_LANGUAGES.items()
    ]


def bundle() -> Document:
    """Return the OpenAPI document without references to other files."""
    schemas: Document = {}
    document: Document = _bundle(read_schema("openapi.json"), schemas)
    document["components"]["schemas"] = dict(sorted(schemas.items()))
    guide = (paths.directory("schemas") / "guide.md").read_text(encoding="utf-8")
    document["info"]["description"] += f"\n\n{guide}"
    for item in document["paths"].values():
        for operation in item.values():
            operation["x-codeSamples"] = _code_samples(operation["operationId"])
    return document


def _openapi(_: argparse.Namespace) -> None:
    print_json(bundle())


COMMAND = Command(
    name="openapi", summary="print the OpenAPI document", reads=NOTHING, run=_openapi, has_json=False
)
