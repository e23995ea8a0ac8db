"""From bytes to a document: JSON, strictly, and then a schema."""

import json

import pytest

from stackmgr import paths
from stackmgr.errors import InvalidBody, InvalidConfiguration
from stackmgr.http import requests
from stackmgr.http.requests import RequestSchema, compile_schema, parse_json
from stackmgr.limits import BODY_LIMIT_BYTES
from stackmgr.stacks.configuration import parse
from tests.support.bad_bodies import BODIES, REASONS
from tests.support.examples import ADDRESSES, configuration, spread

CREATE, UPDATE = RequestSchema("stack_create.json"), RequestSchema("stack_update.json")


def test_a_long_number_is_rejected_for_the_same_reason_as_a_short_one():
    for number in ("9" * 4300, "-" + "9" * 4299, "1" + "0" * 19, "1" * 19 + "e9"):
        reason = "weight_bps_type" if "e" in number else "weight_bps_range"
        body = json.dumps(item()).replace("10000", number)
        with pytest.raises(InvalidConfiguration) as caught:
            UPDATE.parse(body.encode())
        assert caught.value.reason == reason
    assert parse_json(b"1" * 19 + b"e-9") == float("1" * 19)
    assert parse_json(b"9" * 4300) == 10**20 - 1


def as_many(text):
    return text * (BODY_LIMIT_BYTES // len(text) - 5)


TOO_MUCH_STRUCTURE = {
    "nested lists": (f"[{','.join(['[' * 900 + ']' * 900] * 145)}]", InvalidBody),
    "opening brackets": (as_many("["), InvalidBody),
    "empty objects": (f"[{as_many('{},')}0]", InvalidConfiguration),
    "members": (json.dumps(dict.fromkeys(map(str, range(20_000)), 0)), InvalidConfiguration),
    "fractions": (f"[{as_many('0.1,')}0]", InvalidConfiguration),
    "strings": (f'{{"name":[{as_many(chr(34) * 2 + ",")}""]}}', InvalidConfiguration),
    "commas between backslashes": (f"[{as_many(json.dumps(chr(92)) + ',')}0]", InvalidConfiguration),
}


@pytest.mark.parametrize(("text", "error"), TOO_MUCH_STRUCTURE.values(), ids=TOO_MUCH_STRUCTURE)
def test_a_body_with_more_structure_than_any_valid_one_is_not_parsed(monkeypatch, text, error):
    assert 4096 < len(text) <= BODY_LIMIT_BYTES
    monkeypatch.setattr(requests, "_DECODER", None)
    with pytest.raises(error):
        CREATE.parse(text.encode())


@pytest.mark.parametrize("character", list('",[{\\\n \u00e9'))
def test_no_name_counts_as_structure(character):
    longest = configuration(allocation=spread(ADDRESSES), name=character * 43_000)
    for text in (json.dumps(longest), json.dumps(longest, ensure_ascii=False, indent=9)):
        assert CREATE.parse(text.encode()) == longest


def item(**fields):
    return {"allocation": [{"token_address": f"0x{0:040x}", "weight_bps": 10000} | fields]}


@pytest.mark.parametrize(("title", "slug"), REASONS.items(), ids=REASONS)
@pytest.mark.parametrize("operation", [0, 1], ids=["create", "update"])
def test_each_rule_of_a_body_has_its_own_slug(spellings, operation, title, slug):
    schema = (CREATE, UPDATE)[operation]
    with pytest.raises((InvalidBody, InvalidConfiguration)) as caught:
        parse(schema.parse(BODIES[title][operation]), spellings)
    assert caught.value.reason == slug


@pytest.mark.parametrize(
    ("body", "slug"),
    [
        (b'{"name":"four"}', "name_maxLength"),
        (b'{"allocation":[[1]]}', "allocation_item_too_long"),
        (b'{"name":"","allocation":[],"schedule":{}}', "body_maxProperties"),
    ],
)
def test_a_rule_of_any_field_and_keyword_has_a_slug(monkeypatch, body, slug):
    properties = {"name": {"maxLength": 3}, "allocation": {"items": {"items": {}, "maxItems": 0}}}
    monkeypatch.setattr(requests, "read_schema", lambda _: {"properties": properties, "maxProperties": 2})
    with pytest.raises(InvalidConfiguration) as caught:
        requests.RequestSchema("stack_create.json").parse(body)
    assert caught.value.reason == slug


@pytest.fixture
def schema(tmp_path, monkeypatch):
    """Return a function that saves a schema as x.json, in a folder of its own."""
    monkeypatch.setattr(paths, "directory", lambda _: tmp_path)
    draft = {"$schema": "http://json-schema.org/draft-04/schema#"}
    return lambda **members: (tmp_path / "x.json").write_text(json.dumps(draft | members))


@pytest.mark.parametrize(
    "reference", ["http://example.com/x.json", "https://example.com/x.json", "file:///etc/passwd"]
)
def test_no_schema_fetches_another_from_elsewhere(schema, reference):
    schema(**{"$ref": reference})
    with pytest.raises(ValueError, match="may refer to files of its own folder only"):
        compile_schema("x.json")


def test_validating_adds_nothing_to_a_document(schema):
    schema(properties={"a": {"default": 1}})
    assert RequestSchema("x.json").parse(b"{}") == {}
