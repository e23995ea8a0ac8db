"""`stackmgr docs`: the API reference as a static page that works without a network."""

import argparse
import importlib.util
import json
import shutil
from pathlib import Path

from stackmgr import extras
from stackmgr.commands import openapi
from stackmgr.commands.command import TOKENS, Command, argument
from stackmgr.errors import CommandError
from stackmgr.http.schemas import Document

# The Django package of the extra `docs` only carries Redoc's files.  Nothing of it is imported.
_CARRIER = "drf_spectacular_sidecar"
_SCRIPT = "redoc.standalone.js"

# The only resource that Redoc would fetch from elsewhere.
_REMOTE_LOGO = "https://cdn.redoc.ly/redoc/logo-mini.svg"
_EMPTY_IMAGE = "data:image/gif;base64,R0lGODlhAQABAAAAACH5BAEKAAEALAAAAAABAAEAAAICTAEAOw=="

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="icon" href="{icon}">
<style>
body {{ margin: 0 }}
#reference td, #reference th {{ padding: 6px 8px }}
#reference td code {{ word-break: normal; overflow-wrap: break-word; font-size: 12px }}
#reference .redoc-markdown pre code {{ font-size: 12px; white-space: pre-wrap }}
@media (max-width: 600px) {{
  #reference td, #reference th {{ padding: 4px; font-size: 13px }}
  #reference td code {{ overflow-wrap: anywhere; font-size: 11px }}
}}
</style>
</head>
<body>
<div id="reference"></div>
<script src="{script}"></script>
<script>
const description = {document};
// JavaScript sorts keys that look like integers.  Responses keep the order of the document.
for (const [path, method, statuses] of {order}) {{
  const operation = description.paths[path][method];
  operation.responses = new Proxy(operation.responses, {{ ownKeys: () => statuses }});
}}
Redoc.init(description, {options}, document.getElementById("reference"));
</script>
</body>
</html>
"""
_OPTIONS = {
    "expandResponses": "200,201",
    "hideDownloadButton": False,
    "downloadUrls": [{"title": "OpenAPI document", "url": "openapi.json"}],
    "requiredPropsFirst": True,
    "theme": {
        "typography": {
            "fontFamily": "system-ui, sans-serif",
            "headings": {"fontFamily": "system-ui, sans-serif"},
        }
    },
}


def _redoc() -> Path:
    """Return the folder of Redoc.  Raises CommandError."""
    package = importlib.util.find_spec(_CARRIER)
    if package is None or package.origin is None:
        raise CommandError(f"the renderer is missing: {extras.installation('docs')}")
    return Path(package.origin).parent / "static" / _CARRIER / "redoc"


def _in_script(value: object) -> str:
    """Return *value* as JSON that is safe inside a script element."""
    return json.dumps(value).replace("<", "\\u003c")


def _page(document: Document) -> str:
    order = [
        [path, method, list(operation["responses"])]
        for path, item in document["paths"].items()
        for method, operation in item.items()
    ]
    return _PAGE.format(
        title=document["info"]["title"],
        icon=_EMPTY_IMAGE,
        script=_SCRIPT,
        document=_in_script(document),
        order=_in_script(order),
        options=_in_script(_OPTIONS),
    )


def _docs(arguments: argparse.Namespace) -> None:
    redoc, folder, document = _redoc(), arguments.folder, openapi.bundle(arguments.base_url)
    script = (redoc / "bundles" / _SCRIPT).read_text(encoding="utf-8").replace(_REMOTE_LOGO, _EMPTY_IMAGE)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _SCRIPT).write_text(script, encoding="utf-8")
        shutil.copyfile(redoc / "LICENSE", folder / "redoc.LICENSE.txt")
        notices = f"{_SCRIPT}.LICENSE.txt"
        shutil.copyfile(redoc / "bundles" / notices, folder / notices)
        (folder / "openapi.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        (folder / "index.html").write_text(_page(document), encoding="utf-8")
    except OSError as ex:
        raise CommandError(f"{folder} cannot be written: {ex.strerror}") from ex
    print(folder / "index.html")


COMMAND = Command(
    name="docs",
    summary="write the API reference as a static page",
    description="Write the API reference to DIR: index.html, which works without a network, the OpenAPI "
    "document, and the renderer Redoc (extra 'docs'). Prints the path of the page.",
    reads=TOKENS,
    run=_docs,
    arguments=[argument("folder", type=Path, metavar="DIR", help="created if missing"), openapi.BASE_URL],
    has_json=False,
)
