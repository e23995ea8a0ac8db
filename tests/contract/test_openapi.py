"""The OpenAPI document, the guide in it and every response that it describes, against the application."""

import json
import operator
import re
import runpy
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from functools import reduce
from typing import Any
from uuid import uuid4

import falcon.inspect
import pytest
from gunicorn import config
from jsonschema import ValidationError
from openapi_spec_validator import OpenAPIV31SpecValidator

from stackmgr import errors, limits, paths
from stackmgr.errors import BindingConflict, RateLimited, ServiceUnavailable
from stackmgr.http import resources
from stackmgr.http.requests import compile_schema
from stackmgr.http.schemas import read_schema
from stackmgr.limits import BODY_LIMIT_BYTES as BODY_LIMIT
from stackmgr.server.request import HEAD_LIMIT
from stackmgr.stacks import cursor
from tests.support import openapi
from tests.support.client import STATUS
from tests.support.examples import configuration
from tests.support.fixed_verifier import FixedVerifier
from tests.support.openapi import BUNDLE, OPERATIONS, nodes

SOURCE = read_schema("openapi.json")
ALWAYS = {"400", "401", "429", "500", "503"}
STATUSES = {
    "createStack": ALWAYS | {"200", "201", "409", "413"}, "listStacks": ALWAYS | {"200"},
    "getStack": ALWAYS | {"200", "404"}, "updateStack": ALWAYS | {"200", "404", "413"},
}  # fmt: skip
# Of its 400 and its 500, which say what may have changed.
KINDS = {"createStack": ("Create", "Create"), "listStacks": ("List", "Read"), "getStack": ("Get", "Read"),
    "updateStack": ("Update", "Update")}  # fmt: skip


@pytest.mark.parametrize("document", [SOURCE, BUNDLE], ids=["file", "bundle"])
def test_the_description_is_valid_openapi(document):
    base = (paths.directory("schemas") / "openapi.json").resolve().as_uri()
    assert [error.message for error in OpenAPIV31SpecValidator(document, base_uri=base).iter_errors()] == []
    assert document["openapi"].startswith("3.1.")
    assert document["info"]["version"] == "1.0.0"


def test_generated_types_have_one_name():
    """Generators invent a name for an object or an enumeration without one; some prefer `title`."""
    types = {path for path, node in nodes(BUNDLE) if node.get("type") == "object" or "enum" in node}
    assert [path for path in types if not re.fullmatch(r"/components/schemas/[A-Z]\w+", path)] == []
    assert {f"/components/schemas/{name}" for name in ("Stack", "Preset", "ErrorObject")} <= types
    assert "/components/schemas/Error" not in types  # a type of JavaScript
    assert [path for path, node in nodes(BUNDLE["components"]["schemas"]) if "title" in node] == []


def test_the_guide_lists_the_tokens_in_force(monkeypatch, tmp_path):
    document = json.loads(paths.DEFAULT_WHITELIST.read_text())
    document["tokens"][0] |= {"symbol": "A|B", "name": "<b>A</b>"}
    (tmp_path / "tokens.json").write_text(json.dumps(document))
    monkeypatch.setenv("STACKMGR_TOKENS", str(tmp_path / "tokens.json"))
    guide = openapi.reference["bundle"]()["info"]["description"]
    listed = [row.strip("| ").split(" | ") for row in guide.splitlines() if "| `0x" in row]
    assert ["A&#124;B", "&lt;b&gt;A&lt;/b&gt;", f"`{document['tokens'][0]['address']}`"] in listed
    assert sorted(row[2] for row in listed) == sorted(f"`{token['address']}`" for token in document["tokens"])


def test_the_bundled_document_and_the_guide_are_current():
    # Written by: python deploy/reference.py > schemas/openapi.bundled.json
    assert read_schema("openapi.bundled.json") == BUNDLE
    # Written by: python deploy/reference.py --guide > schemas/guide.md
    page = (paths.directory("schemas") / "guide.md").read_text(encoding="utf-8")
    assert page == openapi.reference["guide"]()
    assert re.findall("^## (.+)$", page, re.MULTILINE) == [each["summary"] for each in OPERATIONS.values()]
    assert re.findall("^# (.+)$", page, re.MULTILINE)[0] == "Operations"
    tags = re.findall(r'^ETag: (".+")\n(?:.*\n)*?  "current_revision_id": (".+"),$', page, re.MULTILINE)
    assert [tag == of_body for tag, of_body in tags] == [True] * 3
    assert "{{" not in page + json.dumps(BUNDLE)


def test_the_address_of_a_deployment_is_everywhere(monkeypatch, capsys):
    own = "https://api.example.com/x"
    monkeypatch.setattr(sys, "argv", [openapi.SCRIPT, "--base-url", own])
    runpy.run_path(openapi.SCRIPT, run_name="__main__")
    printed = capsys.readouterr().out
    assert "127.0.0.1" not in printed
    assert printed.count(own) == json.dumps(BUNDLE).count(BUNDLE["servers"][0]["url"]) > 1


def test_the_operations_are_the_routes(app):
    routed = {
        (re.sub(r"{\w+}", "{id}", route.path), method.method)
        for route in falcon.inspect.inspect_app(app).routes
        for method in route.methods
        if not method.internal
    }
    described = {(path, method) for path, method, _ in openapi.operations()}
    assert described == {(path, method) for path, method in routed if method != "HEAD"}
    assert routed == {
        *(("/manager/stacks", method) for method in resources.StackCollection.methods),
        *(("/manager/stacks/{id}", method) for method in resources.StackItem.methods),
    }
    assert OPERATIONS.keys() == STATUSES.keys()


@pytest.mark.parametrize("operation_id", STATUSES)
def test_statuses_and_headers_of_an_operation(operation_id):
    operation = OPERATIONS[operation_id]
    assert operation["summary"]
    assert operation["description"]
    assert (operation.get("security"), BUNDLE["security"]) == (None, [{"ApiKey": []}])
    assert operation["responses"].keys() == STATUSES[operation_id]
    parameters = {each["name"]: each["required"] for each in map(openapi.resolved, operation["parameters"])}
    required = {"createStack": {"Idempotency-Key"}, "listStacks": set()}.get(operation_id, {"id"})
    assert {name for name, is_required in parameters.items() if is_required} == required
    assert "X-Request-Id" in parameters
    assert operation.get("requestBody", {"required": True})["required"]
    invalid, failed = KINDS[operation_id]
    assert operation["responses"]["400"]["$ref"] == f"#/components/responses/Invalid{invalid}"
    assert operation["responses"]["500"]["$ref"] == f"#/components/responses/Failed{failed}"
    for status in operation["responses"]:
        headers = openapi.response(operation_id, status)["headers"].keys()
        assert ("Retry-After" in headers) == (status in {"429", "503"})


def examples_of(operation_id: str, status: str) -> list[Any]:
    shown = openapi.response(operation_id, status)["content"]["application/json"]["examples"]
    return [openapi.resolved(example)["value"] for example in shown.values()]


@pytest.mark.parametrize("operation_id", STATUSES)
def test_examples_of_errors_are_in_use(operation_id):
    kinds = list(error_kinds())
    for status in STATUSES[operation_id] - {"200", "201"}:
        for shown in examples_of(operation_id, status):
            assert str(STATUS[shown["code"]]) == status
            assert shown["message"] in {kind.message for kind in kinds if kind.code == shown["code"]}


def test_each_message_of_a_400_is_an_example_and_in_the_guide():
    invalid, guide = [*error_kinds(errors.InvalidRequest)], BUNDLE["info"]["description"]
    shown = {example["message"] for each in OPERATIONS for example in examples_of(each, "400")}
    assert shown == {kind.message for kind in invalid if kind.status == 400}
    rows = [row.strip("|").split("|") for row in guide.splitlines() if row.startswith("|")]
    first_cells = {row[0].strip() for row in rows}
    assert {f"{status} `{code}`" for code, status in STATUS.items()} <= first_cells
    items = {line[2:] for line in guide.splitlines() if line.startswith("- ")}
    assert {kind.message for kind in invalid} <= items


def test_the_guide_has_the_limits_of_a_head():
    conf = (paths.directory("deploy") / "gunicorn.conf.py").read_text()
    line, fields = config.LimitRequestLine.default, config.LimitRequestFields.default
    field = int(re.search(r"^limit_request_field_size = (\d+)$", conf, re.MULTILINE)[1]) - len("\r\n")
    limit = f"{HEAD_LIMIT} bytes: request line {line} bytes, {fields} header fields of {field} bytes each"
    assert limit in BUNDLE["info"]["description"]


def error_kinds(kind: type[errors.ServiceError] = errors.ServiceError) -> Iterator[type[errors.ServiceError]]:
    yield kind
    for narrower in kind.__subclasses__():
        yield from error_kinds(narrower)


def test_each_body_has_a_valid_example_and_so_have_parameters():
    bodies = [node for _, node in nodes(SOURCE) if "schema" in node and "$ref" in node["schema"]]
    assert bodies
    for body in bodies:
        validate = compile_schema(body["schema"]["$ref"])
        assert body["examples"]
        for example in body["examples"].values():
            validate(openapi.resolved(example)["value"])
    described = [node for _, node in nodes(BUNDLE) if "schema" in node and "example" in node]
    assert described
    for each in described:
        openapi.check(each["schema"], each["example"])


def test_the_limits_are_those_of_the_code():
    parameters = BUNDLE["components"]["parameters"]
    assert BUNDLE["components"]["securitySchemes"]["ApiKey"]["scheme"] == "bearer"
    assert parameters["Limit"]["schema"]["default"] == limits.DEFAULT_PAGE_SIZE == 25
    assert parameters["StackId"]["schema"]["pattern"] == f"^{limits.CANONICAL_UUID.replace('a-f', 'a-fA-F')}$"
    assert read_schema("stack_parts.json")["definitions"]["uuid"]["pattern"] == f"^{limits.CANONICAL_UUID}$"
    cursor.decode(parameters["Cursor"]["example"])
    # Each byte of a key beyond ASCII is two in the database's UTF-8.
    assert f"at most {limits.LONGEST_KEY_BYTES} bytes" in parameters["IdempotencyKey"]["description"]
    limit = f"{limits.BODY_LIMIT_BYTES} bytes"
    assert limit == "262144 bytes"
    for operation_id in ("createStack", "updateStack"):
        assert limit in OPERATIONS[operation_id]["requestBody"]["description"]
        assert limit in openapi.response(operation_id, "413")["description"]


UNREMARKABLE = {"content-type", "content-length"}
TOO_LONG = b" " * (BODY_LIMIT + 1)
ACCEPTED = {
    "createStack": lambda client: client.create(configuration()),
    "listStacks": lambda client: [existing(client), existing(client), client.page("limit=1")][-1],
    "getStack": lambda client: client.get(existing(client)),
    "updateStack": lambda client: client.update(existing(client), {"name": "Other"}),
}
PROVOKED = {
    ("createStack", "200"): lambda client: repeated(client, configuration()),
    ("createStack", "400"): lambda client: client.create({}),
    ("createStack", "409"): lambda client: repeated(client, configuration(name="Other")),
    ("createStack", "413"): lambda client: client.create(TOO_LONG),
    ("listStacks", "400"): lambda client: client.page("limit=0"),
    ("getStack", "400"): lambda client: client.get("1"),
    ("getStack", "404"): lambda client: client.get(str(uuid4())),
    ("updateStack", "400"): lambda client: client.update(existing(client), {}),
    ("updateStack", "404"): lambda client: client.update(str(uuid4()), {"name": "Other"}),
    ("updateStack", "413"): lambda client: client.update(existing(client), TOO_LONG),
}
VERIFIER_ERRORS = {"429": RateLimited(retry_after=0), "500": BindingConflict(), "503": ServiceUnavailable()}


def existing(client):
    return client.create(configuration()).json.get("id", str(uuid4()))


def repeated(client, document):
    client.create(configuration(), key="same")
    return client.create(document, key="same")


@pytest.mark.parametrize(
    ("operation_id", "status"),
    [(name, status) for name, operation in openapi.OPERATIONS.items() for status in operation["responses"]],
)
def test_a_response_matches_its_description(operation_id, status, client, client_with):
    if status in VERIFIER_ERRORS:
        client = client_with("any", verifier=FixedVerifier(VERIFIER_ERRORS[status]))
    if status == "401":
        client.key = "nobody's"
    response = PROVOKED.get((operation_id, status), ACCEPTED[operation_id])(client)
    assert response.status_int == int(status)
    described = openapi.response(operation_id, status)
    openapi.check(described["content"][response.content_type]["schema"], response.json)
    headers = {name: openapi.resolved(header) for name, header in described["headers"].items()}
    lowered = {name.lower() for name in headers}
    assert {name.lower() for name in response.headers} - UNREMARKABLE <= lowered
    for name, header in headers.items():
        assert header["required"] == (name != "Retry-After")
        if header["required"] or name in response.headers:
            value = response.headers[name]
            openapi.check(header["schema"], int(value) if header["schema"]["type"] == "integer" else value)
        if name not in {"X-Request-Id", "Retry-After"}:
            with pytest.raises(ValidationError):
                openapi.check(header["schema"], f"{value} ")
        if name == "Location":
            openapi.check(header["schema"], f"/base{value}")
    for link in map(openapi.resolved, described.get("links", {}).values()):
        known = {openapi.resolved(each)["name"] for each in OPERATIONS[link["operationId"]]["parameters"]}
        for name, expression in link["parameters"].items():
            assert (name in known, expression[:16]) == (True, "$response.body#/")
            members = [int(each) if each.isdigit() else each for each in expression[16:].split("/")]
            assert reduce(operator.getitem, members, response.json)


@pytest.mark.parametrize("query", [*(f"limit={n}" for n in (0, 1, 100, 101)), "cursor="])
def test_parameters_of_a_list_are_those_of_the_service(client, query):
    name, _, text = query.partition("=")
    schema = BUNDLE["components"]["parameters"][name.capitalize()]["schema"]
    with nullcontext() if client.page(query).status_int == 200 else pytest.raises(ValidationError):
        openapi.check(schema, int(text) if name == "limit" else text)


def example(content, name):
    return openapi.resolved(content["application/json"]["examples"][name])["value"]


def test_examples_of_requests_and_responses_match(client):
    sent = example(openapi.OPERATIONS["createStack"]["requestBody"]["content"], "growth")
    updates = openapi.OPERATIONS["updateStack"]["requestBody"]["content"]
    created = client.create(sent, key="growth").json
    updated = client.update(created["id"], example(updates, "schedule")).json
    retried = client.create(sent, key="growth").json
    other = client.update(client.create(sent).json["id"], example(updates, "name_and_allocation")).json
    for returned, operation_id, status, name in (
        (created, "createStack", "201", "growth"),
        (updated, "updateStack", "200", "schedule"),
        (retried, "createStack", "200", "updated_since"),
        (other, "updateStack", "200", "name_and_allocation"),
    ):
        shown = example(openapi.response(operation_id, status)["content"], name)
        ids = {"id": shown["id"], "current_revision_id": shown["current_revision_id"]}
        assert returned | ids == shown
