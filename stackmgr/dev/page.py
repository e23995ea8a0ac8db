"""The page of `stackmgr dev`: the interactive reference, on the address of the application itself.

Only the gunicorn of `stackmgr dev` loads this module: no other start has these paths.  The page
reads the key from the fragment of its address: who has not seen that address does not get the key.
"""

import importlib.util
import json
import os
import runpy
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from uuid import uuid4

from stackmgr import paths, startup
from stackmgr.http.health import WsgiApplication
from stackmgr.http.schemas import read_schema
from stackmgr.stacks import whitelist

_MEDIA_TYPES = {
    "": "text/html; charset=utf-8",
    "guide.md": "text/plain; charset=utf-8",
    "openapi.json": "application/json",
    "stylesheets/swagger-ui.css": "text/css; charset=utf-8",
    "javascripts/swagger-ui-bundle.js": "text/javascript; charset=utf-8",
}


def swagger_ui() -> Path | None:
    """Return the folder of Swagger UI, or None without the extra `dev`.

    Its package is a plugin of MkDocs, but only the files are used: nothing of it is imported.
    """
    package = importlib.util.find_spec("mkdocs_swagger_ui_tag")
    return Path(package.origin).with_name("swagger-ui") if package and package.origin else None


def sample() -> dict[str, Any]:
    """Return the create body of the OpenAPI document, with tokens of the whitelist in force."""
    create = read_schema("openapi.json")["paths"]["/manager/stacks"]["post"]
    [example] = create["requestBody"]["content"]["application/json"]["examples"].values()
    body: dict[str, Any] = example["value"]
    tokens = whitelist.load_configured().tokens.values()
    for item, token in zip(body["allocation"], tokens, strict=False):
        item["token_address"] = token.checksummed
    return body


def application() -> WsgiApplication:
    service, files = startup.build(os.environ), swagger_ui() or Path()
    own = {"": Path(__file__).with_name("page.html"), "guide.md": paths.directory("schemas") / "guide.md"}
    bundle = runpy.run_path(str(paths.directory("deploy") / "reference.py"))["bundle"]

    def with_page(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        name = environ["PATH_INFO"][1:]
        if name not in _MEDIA_TYPES or environ["REQUEST_METHOD"] not in {"GET", "HEAD"}:
            return service(environ, start_response)
        start_response("200 OK", [("Content-Type", _MEDIA_TYPES[name]), ("Cache-Control", "no-store")])
        if name == "openapi.json":
            document = bundle(f"http://{environ.get('HTTP_HOST', '')}")
            create = document["paths"]["/manager/stacks"]["post"]["requestBody"]["content"]
            create["application/json"]["examples"] = {"growth": {"value": sample()}}
            document["components"]["parameters"]["IdempotencyKey"]["example"] = str(uuid4())
            return [json.dumps(document).encode()]
        return [own.get(name, files / name).read_bytes()]

    return with_page
