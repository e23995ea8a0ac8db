"""Bodies that are rejected: from bytes to a document, a schema, and the rules of a configuration."""

import json

import pytest

from stackmgr.errors import InvalidBody, InvalidConfiguration
from stackmgr.http import requests
from stackmgr.http.requests import RequestSchema, parse_json
from stackmgr.limits import BODY_LIMIT_BYTES
from stackmgr.stacks.configuration import parse
from tests.support.bad_bodies import BODIES, NOT_JSON, REASONS
from tests.support.examples import ADDRESSES, configuration, spread

CREATE, UPDATE = RequestSchema("stack_create.json"), RequestSchema("stack_update.json")


@pytest.mark.parametrize("title", BODIES)
def test_an_invalid_body_is_rejected(client, stack, rejected, title):
    create_body, update_body = BODIES[title]
    message = (InvalidBody if title in NOT_JSON else InvalidConfiguration).message
    created = rejected(400, "invalid_request", client.create, create_body)
    updated = rejected(400, "invalid_request", client.update, stack["id"], update_body)
    assert created.json["message"] == updated.json["message"] == message
    assert client.get(stack["id"]).json == stack


def test_a_long_number_has_the_same_reason():
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
    "nested objects": ("[" + ",".join(['{"":' * 300 + "0" + "}" * 300] * 170) + "]", InvalidBody),
    "opening brackets": (as_many("["), InvalidBody),
    "the fewest bytes that are counted": ("[" * 4097, InvalidBody),
    "after an escaped backslash": (r'"\\"' + as_many("["), InvalidBody),
    "empty objects": (f"[{as_many('{},')}0]", InvalidConfiguration),
    "members": (json.dumps(dict.fromkeys(map(str, range(20_000)), 0)), InvalidConfiguration),
    "fractions": (f"[{as_many('0.1,')}0]", InvalidConfiguration),
    "strings": (f'{{"name":[{as_many(chr(34) * 2 + ",")}""]}}', InvalidConfiguration),
    "commas between backslashes": (f"[{as_many(json.dumps(chr(92)) + ',')}0]", InvalidConfiguration),
}


@pytest.mark.parametrize(("text", "error"), TOO_MUCH_STRUCTURE.values(), ids=TOO_MUCH_STRUCTURE)
def test_too_much_structure_is_not_parsed(monkeypatch, text, error):
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


WITHOUT_PLACE = {"not_utf8", "not_json", "repeated_member", "name_surrogate", "name_blank", "name_nul"}


@pytest.mark.parametrize(("title", "slug"), REASONS.items(), ids=REASONS)
@pytest.mark.parametrize("operation", [0, 1], ids=["create", "update"])
def test_each_rule_of_a_body_has_its_own_slug(spellings, operation, title, slug):
    schema = (CREATE, UPDATE)[operation]
    with pytest.raises((InvalidBody, InvalidConfiguration)) as caught:
        parse(schema.parse(BODIES[title][operation]), spellings)
    assert caught.value.reason == slug
    assert (caught.value.at is None) == (slug in WITHOUT_PLACE)
