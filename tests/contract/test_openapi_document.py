import json
import re
import runpy
import sys
from collections.abc import Iterator
from typing import Any

import falcon.inspect
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from stackmgr import errors, limits, paths
from stackmgr.access.verifiers.database import DatabaseVerifier
from stackmgr.database.pool import Database
from stackmgr.http import resources
from stackmgr.http.app import create_app
from stackmgr.http.requests import compile_schema
from stackmgr.http.schemas import read_schema, resolve_reference
from stackmgr.stacks import configuration, cursor
from tests.support import openapi
from tests.support.client import STATUS
from tests.support.openapi import BUNDLE, OPERATIONS, nodes

SOURCE = read_schema("openapi.json")
ALWAYS = {"400", "401", "429", "500", "503"}
STATUSES = {
    "createStack": ALWAYS | {"200", "201", "409", "413"},
    "listStacks": ALWAYS | {"200"},
    "getStack": ALWAYS | {"200", "404"},
    "updateStack": ALWAYS | {"200", "404", "413"},
}
ERROR_RESPONSES = [
    pytest.param(operation_id, status, id=f"{operation_id}-{status}")
    for operation_id, statuses in STATUSES.items()
    for status in sorted(statuses - {"200", "201"})
]


MEDIA = [
    pytest.param(node, id=path) for path, node in nodes(SOURCE) if "schema" in node and "examples" in node
]
SINGLE_VALUES = [
    pytest.param(node, id=path) for path, node in nodes(BUNDLE) if "schema" in node and "example" in node
]


@pytest.mark.parametrize("document", [SOURCE, BUNDLE], ids=["file", "bundle"])
def test_the_description_is_valid_openapi(document):
    base = (paths.directory("schemas") / "openapi.json").resolve().as_uri()
    assert [error.message for error in OpenAPIV31SpecValidator(document, base_uri=base).iter_errors()] == []
    assert document["openapi"].startswith("3.1.")
    assert document["info"]["version"] == "1.0.0"


def test_the_bundle_is_complete_in_itself():
    referred = {node["$ref"] for _, node in nodes(BUNDLE) if "$ref" in node}
    assert all(reference.startswith("#/components/") for reference in referred)
    for reference in referred:
        openapi.resolved({"$ref": reference})
    named = {f"#/components/schemas/{name}" for name in BUNDLE["components"]["schemas"]}
    assert named <= referred
    for schema in BUNDLE["components"]["schemas"].values():
        assert not schema.keys() & {"$schema", "id", "definitions"}


def test_what_client_generators_make_types_of_has_one_name_in_all_of_them():
    """Generators invent a name for an object or an enumeration without one; some prefer `title`."""
    types = {path for path, node in nodes(BUNDLE) if node.get("type") == "object" or "enum" in node}
    assert types == {
        f"/components/schemas/{name}"
        for name in (
            "AllocationItemRequest",
            "AllocationItemResponse",
            "ErrorCode",
            "ErrorObject",  # "Error" is a type of JavaScript
            "Preset",
            "Schedule",
            "Stack",
            "StackCreate",
            "StackPage",
            "StackUpdate",
        )
    }
    assert [path for path, node in nodes(BUNDLE["components"]["schemas"]) if "title" in node] == []


def test_the_script_prints_the_bundle(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [openapi.SCRIPT])
    runpy.run_path(openapi.SCRIPT, run_name="__main__")
    assert json.loads(capsys.readouterr().out) == BUNDLE


def test_the_bundled_document_is_current():
    # Written by: python deploy/reference.py > schemas/openapi.bundled.json
    assert read_schema("openapi.bundled.json") == BUNDLE


def test_the_bundle_has_the_base_address_that_is_given(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [openapi.SCRIPT, "--base-url", "https://api.example.com/base"])
    runpy.run_path(openapi.SCRIPT, run_name="__main__")
    document = json.loads(capsys.readouterr().out)
    assert [server["url"] for server in document["servers"]] == ["https://api.example.com/base"]
    assert "\nexport BASE_URL=https://api.example.com/base\n" in document["info"]["description"]
    assert [server["url"] for server in BUNDLE["servers"]] == ["http://127.0.0.1:8000"]
    assert "\nexport BASE_URL=http://127.0.0.1:8000\n" in BUNDLE["info"]["description"]


@pytest.mark.parametrize(
    "text", ["api.example.com", "ftp://example.com", "https://", "https://example.com/?q"]
)
def test_another_base_address_is_wrong_usage(monkeypatch, capsys, text):
    monkeypatch.setattr(sys, "argv", [openapi.SCRIPT, "--base-url", text])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(openapi.SCRIPT, run_name="__main__")
    assert ended.value.code == 2
    assert "must be http:// or https://" in capsys.readouterr().err


def test_the_guide_lists_the_tokens_in_force(monkeypatch, tmp_path):
    document = json.loads(paths.default_whitelist().read_text())
    document["tokens"][0] |= {"symbol": "A|B", "name": "<b>A</b>"}
    (tmp_path / "tokens.json").write_text(json.dumps(document))
    monkeypatch.setenv("STACKMGR_TOKENS", str(tmp_path / "tokens.json"))
    guide = openapi.reference["bundle"]()["info"]["description"]
    listed = [row.strip("| ").split(" | ") for row in guide.splitlines() if "| `0x" in row]
    assert ["A&#124;B", "&lt;b&gt;A&lt;/b&gt;", f"`{document['tokens'][0]['address']}`"] in listed
    assert sorted(row[2] for row in listed) == sorted(f"`{token['address']}`" for token in document["tokens"])


def test_the_guide_names_no_command_but_those_that_run_the_service_for_a_client_developer():
    assert set(re.findall(r"`((?:deploy|stackmgr)\b[^`]*)`", json.dumps(BUNDLE))) == {
        "deploy/dev",
        "stackmgr dev",
    }


def test_every_name_in_double_braces_is_replaced():
    assert "{{" not in json.dumps(BUNDLE)


def test_the_guide_in_the_checkout_is_the_filled_template():
    """Otherwise: python deploy/reference.py --guide > schemas/guide.md"""
    page = (paths.directory("schemas") / "guide.md").read_text(encoding="utf-8")
    assert page == openapi.reference["guide"]()
    assert "{{" not in page


def test_a_reference_that_leads_nowhere_is_an_error():
    with pytest.raises(KeyError):
        resolve_reference("stack_parts.json#/definitions/nothing")


def test_the_operations_are_the_routes_of_the_application(spellings):
    app = create_app(
        database=Database("dbname=never-opened", pool_size=1),
        verifier=DatabaseVerifier(),
        spellings=spellings,
    )
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


def test_the_length_of_an_idempotency_key_is_that_of_the_code():
    """Each byte beyond ASCII is two in the database's UTF-8."""
    always, ascii_only = limits.LONGEST_KEY_BYTES // 2, limits.LONGEST_KEY_BYTES
    description = BUNDLE["components"]["parameters"]["IdempotencyKey"]["description"]
    assert f"{always} bytes always fit, and {ascii_only} if all are ASCII" in description


@pytest.mark.parametrize("operation_id", STATUSES)
def test_an_operation_has_the_statuses_of_the_contract_and_every_response_its_headers(operation_id):
    operation = OPERATIONS[operation_id]
    assert operation["summary"]
    assert operation["description"]
    assert operation["responses"].keys() == STATUSES[operation_id]
    parameters = {openapi.resolved(parameter)["name"] for parameter in operation["parameters"]}
    assert "X-Request-Id" in parameters
    assert ("Idempotency-Key" in parameters) == (operation_id == "createStack")
    for status in operation["responses"]:
        headers = openapi.response(operation_id, status)["headers"].keys()
        assert headers >= {"X-Request-Id", "Cache-Control"}
        assert ("WWW-Authenticate" in headers) == (status == "401")
        assert ("Retry-After" in headers) == (status in {"429", "503"})
        assert ("Location" in headers) == (status == "201")
        assert ("ETag" in headers) == (status in {"200", "201"} and operation_id != "listStacks")


@pytest.mark.parametrize(("operation_id", "status"), ERROR_RESPONSES)
def test_an_error_is_shown_with_its_code_and_a_message_that_the_service_uses(operation_id, status):
    messages = {kind.code: set() for kind in kinds_of_error()}
    for kind in kinds_of_error():
        messages[kind.code].add(kind.message)
    examples = openapi.response(operation_id, status)["content"]["application/json"]["examples"]
    for example in map(openapi.resolved, examples.values()):
        shown = example["value"]
        assert str(STATUS[shown["code"]]) == status
        assert shown["message"] in messages[shown["code"]]


def test_every_message_of_a_400_is_an_example():
    shown = {
        openapi.resolved(example)["value"]["message"]
        for operation_id in OPERATIONS
        for example in openapi.response(operation_id, "400")["content"]["application/json"][
            "examples"
        ].values()
    }
    assert shown == {kind.message for kind in kinds_of_error(errors.InvalidRequest) if kind.status == 400}


def test_the_guide_has_the_messages_and_statuses_of_the_service():
    guide = BUNDLE["info"]["description"]
    rows = [row.strip("|").split("|") for row in guide.splitlines() if row.startswith("|")]
    first_cells = {row[0].strip() for row in rows}
    assert {f"{status} `{code}`" for code, status in STATUS.items()} <= first_cells
    assert {kind.message for kind in kinds_of_error(errors.InvalidRequest)} <= first_cells


def test_the_summaries_of_examples_fit_the_selector_of_the_reference():
    summaries = [node["summary"] for _, node in nodes(BUNDLE) if "summary" in node and "value" in node]
    assert summaries
    assert [summary for summary in summaries if len(summary) > 32] == []


def kinds_of_error(
    kind: type[errors.ServiceError] = errors.ServiceError,
) -> Iterator[type[errors.ServiceError]]:
    yield kind
    for narrower in kind.__subclasses__():
        yield from kinds_of_error(narrower)


@pytest.mark.parametrize("media", MEDIA)
def test_an_example_is_valid_by_the_schema_that_the_service_compiles(media):
    validate = compile_schema(media["schema"]["$ref"])
    for example in media["examples"].values():
        validate(openapi.resolved(example)["value"])


@pytest.mark.parametrize("described", SINGLE_VALUES)
def test_an_example_of_a_header_or_parameter_is_valid(described):
    openapi.check(described["schema"], described["example"])


def test_every_body_has_an_example():
    bodies = [node for _, node in nodes(SOURCE) if "schema" in node and "$ref" in node["schema"]]
    assert bodies
    assert all(body["examples"] for body in bodies)


def test_the_example_of_a_create_returns_the_example_response(spellings):
    def example(content: dict[str, Any], name: str) -> Any:
        return openapi.resolved(content["application/json"]["examples"][name])["value"]

    created = configuration.parse_create(
        example(OPERATIONS["createStack"]["requestBody"]["content"], "growth"), spellings
    )
    shown = example(openapi.response("createStack", "201")["content"], "growth")
    assert json.loads(created.allocation) == shown["allocation"]
    assert (created.name, created.preset) == (shown["name"], shown["schedule"]["preset"])
    for update in OPERATIONS["updateStack"]["requestBody"]["content"]["application/json"][
        "examples"
    ].values():
        configuration.parse_update(update["value"], spellings)


def test_the_limits_are_those_of_the_code():
    parameters = BUNDLE["components"]["parameters"]
    assert parameters["Limit"]["schema"]["maximum"] == limits.MAX_PAGE_SIZE == 100
    assert parameters["Limit"]["schema"]["default"] == limits.DEFAULT_PAGE_SIZE == 25
    assert parameters["StackId"]["schema"]["pattern"] == f"^{limits.CANONICAL_UUID.replace('a-f', 'a-fA-F')}$"
    assert read_schema("stack_parts.json")["definitions"]["uuid"]["pattern"] == f"^{limits.CANONICAL_UUID}$"
    cursor.decode(parameters["Cursor"]["example"])
    limit = f"{limits.BODY_LIMIT_BYTES} bytes"
    assert limit == "262144 bytes"
    for operation_id in ("createStack", "updateStack"):
        assert limit in OPERATIONS[operation_id]["requestBody"]["description"]
        assert limit in openapi.response(operation_id, "413")["description"]


def test_every_operation_requires_a_key():
    assert BUNDLE["security"] == [{"ApiKey": []}]
    assert all("security" not in operation for operation in OPERATIONS.values())
    assert BUNDLE["components"]["securitySchemes"]["ApiKey"]["scheme"] == "bearer"


@pytest.mark.parametrize("operation", ["listStacks", "getStack"])
def test_no_text_of_a_read_says_how_to_retry_a_write(operation):
    [found] = [
        each
        for item in BUNDLE["paths"].values()
        for each in item.values()
        if isinstance(each, dict) and each.get("operationId") == operation
    ]
    responses = [
        BUNDLE["components"]["responses"][each["$ref"].rpartition("/")[2]] if "$ref" in each else each
        for each in found["responses"].values()
    ]
    texts = [response["description"] for response in responses]
    assert len(texts) > 4
    assert [text for text in texts if re.search("Idempotency-Key|create|update|committed", text)] == []
