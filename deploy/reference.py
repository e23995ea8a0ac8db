"""The API reference, with the tokens in force and, by --base-url, the address of a deployment.

    python deploy/reference.py > schemas/openapi.bundled.json    # for client generators
    python deploy/reference.py --guide > schemas/guide.md        # operations and guide, to read
    python deploy/reference.py --page DIR                        # a static page, for use offline

`schemas/openapi.json` refers to the schemas that the service compiles.  Not every tool resolves
references to other files or supports their dialect, so each of them becomes a named component.
`schemas/guide.template` and `schemas/samples/` hold what is easier to write and to run outside a
JSON file; `reference.html` is the page around Redoc.  A name in double braces stands for a value: a
limit of `limits.py`, the whitelist in force, a program. The page needs the extra `docs`.
"""

import argparse
import html
import importlib.util
import json
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

from stackmgr import limits, paths
from stackmgr.http.schemas import Document, read_schema, resolve_reference
from stackmgr.stacks import whitelist

# Language and suffix of each sample in schemas/samples.
_SAMPLE_LANGUAGES = {"Shell": "sh", "Python": "py", "JavaScript": "mjs"}
_NAME = re.compile(r"\{\{([A-Za-z_.]+)\}\}")
# An object that contains no other one.
_INNERMOST = re.compile(r"\{([^{}\[\]]*)\}")
# The Django package of the extra `docs` only carries Redoc's files.  Nothing of it is imported.
_CARRIER = "drf_spectacular_sidecar"
_SCRIPT = "redoc.standalone.js"
# The only resource that Redoc would fetch from elsewhere.
_REMOTE_LOGO = "https://cdn.redoc.ly/redoc/logo-mini.svg"
_EMPTY_IMAGE = "data:image/gif;base64,R0lGODlhAQABAAAAACH5BAEKAAEALAAAAAABAAEAAAICTAEAOw=="

_OPTIONS = {
    "expandResponses": "200,201",
    "hideDownloadButton": False,
    "downloadUrls": [{"title": "OpenAPI document", "url": "openapi.json"}],
    "requiredPropsFirst": True,
    "theme": {
        # On a narrower screen samples follow the text: the guide's tables need the width.
        "breakpoints": {"medium": "100rem"},
        "typography": {
            "fontFamily": "system-ui, sans-serif",
            "headings": {"fontFamily": "system-ui, sans-serif"},
        },
    },
}


def _component_name(reference: str) -> str:
    """Return `Stack` for `stack.json`, `WeightBps` for `…json#/definitions/weight_bps`."""
    words = reference.rpartition("/")[2].removesuffix(".json").split("_")
    return "".join(word.capitalize() for word in words)


def _bundle(node: Any, components: Document) -> Any:
    """Return *node* with references to files replaced by ones to *components*, which it extends."""
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


def _resolved(node: Any, document: Document) -> Any:
    """Return *node* with every reference inside *document* replaced by what it refers to."""
    if isinstance(node, list):
        return [_resolved(item, document) for item in node]
    if not isinstance(node, dict):
        return node
    if node.get("$ref", "").startswith("#/"):
        target = document
        for member in node["$ref"].removeprefix("#/").split("/"):
            target = target[member]
        return _resolved(target, document)
    return {name: _resolved(value, document) for name, value in node.items()}


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
    """Return the value of each name in double braces.  Raises SettingsError."""
    listed = whitelist.load_configured()
    blank = (code for code in range(sys.maxunicode + 1) if chr(code).isspace())
    *first, last = _ranges(blank)
    return {
        **{name: str(value) for name, value in vars(limits).items() if name.isupper()},
        "base_url": address,
        "version": version,
        "settlement": _cell(listed.settlement.symbol),
        "tokens": "\n".join(
            f"{_cell(token.symbol)} | {_cell(token.name)} | `{token.checksummed}`"
            for token in sorted(listed.tokens.values(), key=lambda token: token.symbol)
        ),
        "whitespace": textwrap.fill(f"{', '.join(first)} and {last}", 98),
        "client.py": f"```python\n{_read('samples/client.py')}```",
        "client.mjs": f"```js\n{_read('samples/client.mjs')}```",
    }


def bundle(address: str | None = None) -> Document:
    """Return the OpenAPI document without references to other files, of the service at *address*.

    The default is the address of `stackmgr dev`.  Raises SettingsError.
    """
    schemas: Document = {}
    document: Document = _bundle(read_schema("openapi.json"), schemas)
    document["components"]["schemas"] = dict(sorted(schemas.items()))
    document["info"]["description"] += f"\n\n{_read('guide.template')}"
    for item in document["paths"].values():
        for operation in item.values():
            operation["x-codeSamples"] = _code_samples(operation["operationId"])
    [server] = document["servers"]
    if address:
        document["servers"] = [{"url": address, "description": "The base address of the deployment."}]
    values = _values(address or server["url"], document["info"]["version"])
    # The values are put into JSON text, as parts of its strings.
    filled = _NAME.sub(lambda found: json.dumps(values[found[1]])[1:-1], json.dumps(document))
    return dict(json.loads(filled))


def _pretty(example: Any) -> str:
    """Return JSON in which an object without another one takes one line."""
    return _INNERMOST.sub(lambda found: "{" + " ".join(found[1].split()) + "}", json.dumps(example, indent=2))


def _example(node: Document) -> Any:
    """Return the first example of a body, or None."""
    for content in node.get("content", {}).values():
        for example in content["examples"].values():
            return example["value"]
    return None


def _operation(path: str, method: str, operation: Document) -> str:
    """Return a section: a request, its response, every status of a resolved *operation*."""
    request = ["Authorization: Bearer <API_KEY>"]
    for parameter in operation["parameters"]:
        name, example = parameter["name"], parameter["example"]
        if parameter["in"] == "path":
            path = path.replace(f"{{{name}}}", example)
        elif parameter["in"] == "header" and parameter["required"]:
            request.append(f"{name}: {example}")
    if body := _example(operation.get("requestBody", {})):
        request += ["Content-Type: application/json", "", _pretty(body)]
    status, described = next(iter(operation["responses"].items()))
    shown, response = _example(described), [f"{status} {HTTPStatus(int(status)).phrase}"]
    if "ETag" in described["headers"]:
        response.append(f'ETag: "{shown["current_revision_id"]}"')
    if "Location" in described["headers"]:
        response.append(f"Location: {described['headers']['Location']['example']}")
    parts = [[f"{method.upper()} {path}", *request], [*response, "", _pretty(shown)]]
    blocks = ["```http\n" + "\n".join(part) + "\n```" for part in parts]
    return "\n\n".join(
        [f"## {operation['summary']}", *blocks, f"Statuses: {', '.join(operation['responses'])}"]
    )


def guide() -> str:
    """Return the operations and the guide, with links to its programs.  Raises SettingsError."""
    document = read_schema("openapi.json")
    values = _values(document["servers"][0]["url"], document["info"]["version"])
    values |= {name: f"[samples/{name}](samples/{name})" for name in ("client.py", "client.mjs")}
    document = _resolved(document, document)
    sections = [
        _operation(path, method, operation)
        for path, item in document["paths"].items()
        for method, operation in item.items()
    ]
    text = "\n\n".join(["# Operations", *sections, _read("guide.template")])
    return _NAME.sub(lambda found: values[found[1]], text)


def _redoc() -> Path:
    package = importlib.util.find_spec(_CARRIER)
    if package is None or package.origin is None:
        sys.exit("the renderer is missing: install the extra 'docs'")
    return Path(package.origin).parent / "static" / _CARRIER / "redoc"


def _in_script(value: object) -> str:
    """Return *value* as JSON that is safe inside a script element."""
    return json.dumps(value).replace("<", "\\u003c")


def _operations_first(document: Document) -> Document:
    """Return a copy with the chapters of the description as tags, which Redoc shows in order.

    The operations have the tag without a name, which is not folded in the menu.
    """
    intro, *chapters = re.split(r"\n\n# (.+)\n\n", document["info"]["description"])
    tags = [
        {"name": name, "x-traitTag": True, "description": text}
        for name, text in zip(chapters[::2], chapters[1::2], strict=True)
    ]
    methods = {
        path: {method: operation | {"tags": [""]} for method, operation in item.items()}
        for path, item in document["paths"].items()
    }
    info = document["info"] | {"description": intro}
    return document | {"info": info, "tags": [{"name": ""}, *tags], "paths": methods}


def _page(document: Document) -> str:
    order = [
        [path, method, list(operation["responses"])]
        for path, item in document["paths"].items()
        for method, operation in item.items()
    ]
    values = {
        "title": document["info"]["title"],
        "icon": _EMPTY_IMAGE,
        "script": _SCRIPT,
        "document": _in_script(_operations_first(document)),
        "order": _in_script(order),
        "options": _in_script(_OPTIONS),
    }
    template = (paths.directory("deploy") / "reference.html").read_text(encoding="utf-8")
    return _NAME.sub(lambda found: values[found[1]], template)


def write_page(folder: Path, document: Document) -> None:
    """Write the page, the document and the renderer to *folder*."""
    redoc = _redoc()
    script = (redoc / "bundles" / _SCRIPT).read_text(encoding="utf-8").replace(_REMOTE_LOGO, _EMPTY_IMAGE)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _SCRIPT).write_text(script, encoding="utf-8")
    shutil.copyfile(redoc / "LICENSE", folder / "redoc.LICENSE.txt")
    notices = f"{_SCRIPT}.LICENSE.txt"
    shutil.copyfile(redoc / "bundles" / notices, folder / notices)
    (folder / "openapi.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    (folder / "index.html").write_text(_page(document), encoding="utf-8")


def _base_url(text: str) -> str:
    if not re.fullmatch(r"https?://[^/?#@\s]+(/[^?#\s]*)?", text):
        raise argparse.ArgumentTypeError("must be http:// or https://, a host, and perhaps a port and a path")
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description="Print the OpenAPI document as one file.")
    parser.add_argument("--base-url", type=_base_url, metavar="URL", help="the address of the deployment")
    parser.add_argument("--page", type=Path, metavar="DIR", help="write the reference as a page to DIR")
    parser.add_argument("--guide", action="store_true", help="print operations and guide, as Markdown")
    arguments = parser.parse_args()
    if arguments.guide:
        sys.stdout.write(guide())
        return
    document = bundle(arguments.base_url)
    if arguments.page:
        write_page(arguments.page, document)
    else:
        print(json.dumps(document, indent=2))


if __name__ == "__main__":
    main()
