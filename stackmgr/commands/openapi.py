"""`stackmgr openapi`: the OpenAPI document bundled into one, for client generators and other tools.

`schemas/openapi.json` refers to the schemas that the service compiles.  Not every tool resolves references
to other files or supports their dialect, so each of them becomes a named component.  `schemas/guide.md` and
`schemas/samples/` hold what is easier to write and to run outside a JSON file.  Wherever they have a name in
double braces, the bundle has its value: a limit of `limits.py`, the whitelist in force, a sample.
"""

import argparse
import html
import json
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from stackmgr import limits, paths
from stackmgr.commands.arguments import base_url
from stackmgr.commands.command import TOKENS, Command, argument
from stackmgr.commands.output import print_json
from stackmgr.http.schemas import Document, read_schema, resolve_reference
from stackmgr.stacks import whitelist

# Language and suffix of each sample in schemas/samples.
_SAMPLE_LANGUAGES = {"Shell": "sh", "Python": "py", "JavaScript": "mjs"}

_NAME = re.compile(r"\{\{([A-Za-z_.]+)\}\}")


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


def _read(name: str) -> str:
    return (paths.directory("schemas") / name).read_text(encoding="utf-8")


def _code_samples(operation_id: str) -> list[dict[str, str]]:
    """Return the samples of an operation in the form that API reference renderers expect."""
    return [
        {"lang": language, "source": _read(f"samples/{operation_id}.{suffix}")}
        for language, suffix in _SAMPLE_LANGUAGES.items()
    ]


def _ranges(codes: Iterable[int]) -> Iterator[str]:
    """Yield `U+0009 to U+000D` for each run of *codes*, which ascend."""
    run = range(0)
    for code in [*codes, -1]:
        if code == run.stop and run:
            run = range(run.start, code + 1)
            continue
        if run:
            yield " to ".join(f"U+{end:04X}" for end in dict.fromkeys((run[0], run[-1])))
        run = range(code, code + 1)


def _cell(text: str) -> str:
    return html.escape(text).replace("|", "&#124;")


def _values(address: str, version: str) -> dict[str, str]:
    """Return what stands for each name in double braces.  Raises WhitelistError."""
    listed = whitelist.load_configured()
    blank = (code for code in range(sys.maxunicode + 1) if chr(code).isspace())
    *first, last = _ranges(blank)
    return {
        **{name: str(value) for name, value in vars(limits).items() if name.isupper()},
        "ALWAYS_FITTING_KEY_BYTES": str(limits.LONGEST_KEY_BYTES // 2),
        "CHAIN_ID": str(whitelist.CHAIN_ID),
        "base_url": address,
        "version": version,
        "settlement": _cell(listed.settlement.symbol),
        "tokens": "\n".join(
            f"| {_cell(token.symbol)} | {_cell(token.name)} | `{token.checksummed}` |"
            for token in sorted(listed.tokens.values(), key=lambda token: token.symbol)
        ),
        "whitespace": f"{', '.join(first)} and {last}",
        "client.py": _read("samples/client.py").strip(),
        "client.mjs": _read("samples/client.mjs").strip(),
    }


def bundle(address: str | None = None) -> Document:
    """Return the OpenAPI document without references to other files, of the service at *address*.

    Without one the document has a variable, whose default is that of `stackmgr dev`.  Raises WhitelistError.
    """
    schemas: Document = {}
    document: Document = _bundle(read_schema("openapi.json"), schemas)
    document["components"]["schemas"] = dict(sorted(schemas.items()))
    document["info"]["description"] += f"\n\n{_read('guide.md')}"
    for item in document["paths"].values():
        for operation in item.values():
            operation["x-codeSamples"] = _code_samples(operation["operationId"])
    [server] = document["servers"]
    if address:
        document["servers"] = [{"url": address, "description": server["description"]}]
    values = _values(address or server["variables"]["base_url"]["default"], document["info"]["version"])
    # The values are put into JSON text, as parts of its strings.
    filled = _NAME.sub(lambda found: json.dumps(values[found[1]])[1:-1], json.dumps(document))
    return dict(json.loads(filled))


def _openapi(arguments: argparse.Namespace) -> None:
    print_json(bundle(arguments.base_url))


BASE_URL = argument(
    "--base-url",
    type=base_url,
    metavar="URL",
    help="the address of the deployment, in the document",
)
COMMAND = Command(
    name="openapi",
    summary="print the OpenAPI document",
    description="Print the OpenAPI document, with the tokens in force.",
    reads=TOKENS,
    run=_openapi,
    arguments=[BASE_URL],
    has_json=False,
)
