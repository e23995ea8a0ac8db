"""The schemas: requirements of the service and of the OpenAPI document on them."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from fastjsonschema import JsonSchemaValueException

from stackmgr import paths
from stackmgr.http.requests import compile_schema
from stackmgr.http.schemas import read_schema
from stackmgr.limits import MAX_PAGE_SIZE, TOKEN_COUNT, TOTAL_BPS
from stackmgr.stacks.eip55 import eip55
from tests.support.client import STATUS
from tests.support.examples import ADDRESSES, CONFIGURATION, PRESETS, spread

ID = "0f0e0d0c-0b0a-4988-8776-655443322110"
NAMES = sorted(path.name for path in paths.directory("schemas").glob("*.json") if "openapi" not in path.name)
PARTS = read_schema("stack_parts.json")["definitions"]
MIGRATIONS = "".join(path.read_text() for path in sorted(paths.directory("sql").glob("migrations/*.sql")))


def subschemas(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield schema
    named = {**schema.get("properties", {}), **schema.get("definitions", {})}
    for child in [*named.values(), *([schema["items"]] if "items" in schema else [])]:
        yield from subschemas(child)


@pytest.mark.parametrize("name", NAMES)
def test_an_object_of_a_schema_has_no_other_members(name):
    compile_schema(name)
    assert read_schema(name)["id"] == name
    assert read_schema(name)["$schema"] == "http://json-schema.org/draft-04/schema#"
    for schema in subschemas(read_schema(name)):
        if schema.get("type") == "object":
            assert schema["additionalProperties"] is False
            required = set() if schema.get("minProperties") else schema["properties"].keys()
            assert set(schema.get("required", ())) == required
        assert "$ref" in schema or schema["description"]


def test_the_limits_are_those_of_the_code():
    assert PARTS["weight_bps"]["maximum"] == TOTAL_BPS == 10000
    for name in ("allocation_request", "allocation_response"):
        assert (PARTS[name]["minItems"], PARTS[name]["maxItems"]) == (1, TOKEN_COUNT) == (1, 30)
    assert re.findall(r"items > (\d+)", MIGRATIONS) == [str(TOKEN_COUNT)]
    assert re.findall(r"total = (\d+);", MIGRATIONS) == [str(TOTAL_BPS)]
    assert read_schema("stack_page.json")["properties"]["items"]["maxItems"] == MAX_PAGE_SIZE


def test_error_codes_are_those_of_the_code():
    assert read_schema("error_object.json")["definitions"]["error_code"]["enum"] == list(STATUS)


def test_the_presets_are_those_of_the_tables():
    presets = PARTS["preset"]["enum"]
    stated = ", ".join(f"'{preset}'" for preset in presets)
    assert re.findall(r"preset_is_known CHECK \(VALUE IN \(([^)]*)\)\)", MIGRATIONS)[-1] == stated
    assert presets == list(PRESETS)


def test_a_response_has_lowercase_ids_and_addresses():
    validate = compile_schema("stack.json")
    returned = {"id": ID, "current_revision_id": ID} | CONFIGURATION | {"allocation": spread(ADDRESSES)}
    validate(returned)
    checksummed = {"allocation": spread(map(eip55, ADDRESSES))}
    for changed in ({"id": ID.upper()}, {"current_revision_id": f"{ID} "}, checksummed):
        with pytest.raises(JsonSchemaValueException):
            validate(returned | changed)


def test_requests_and_responses_have_one_shape():
    fields = read_schema("stack_create.json")["properties"].keys()
    assert read_schema("stack_update.json")["properties"].keys() == fields
    assert read_schema("stack.json")["properties"].keys() == fields | {"id", "current_revision_id"}
