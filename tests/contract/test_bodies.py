"""Bodies that are not JSON, or not a configuration: create and update reject them."""

import json

import pytest

from tests.support.bad_bodies import BODIES, FAULTS, NOT_AN_OBJECT, NOT_JSON, body_with, field_text
from tests.support.examples import ADDRESSES, CONFIGURATION, configuration, spread


@pytest.mark.parametrize("bodies", BODIES.values(), ids=BODIES)
def test_an_invalid_body_is_rejected_by_create_and_by_update(client, stack, rejected, bodies):
    create_body, update_body = bodies
    rejected(400, "invalid_request", client.create, create_body)
    rejected(400, "invalid_request", client.update, stack["id"], update_body)
    assert client.get(stack["id"]).json == stack


@pytest.mark.parametrize("field", CONFIGURATION)
def test_a_create_needs_each_of_its_fields(client, rejected, field):
    document = configuration()
    del document[field]
    rejected(400, "invalid_request", client.create, document)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"{}", id="no field"),
        *(pytest.param(json.dumps({field: None}).encode(), id=f"null {field}") for field in CONFIGURATION),
        pytest.param(b'{"id":"00000000-0000-4000-8000-000000000000"}', id="only a field it does not know"),
    ],
)
def test_an_update_needs_a_field_it_knows(client, stack, rejected, body):
    rejected(400, "invalid_request", client.update, stack["id"], body)
    assert client.get(stack["id"]).json == stack


@pytest.mark.parametrize(
    "title",
    ["empty name", "spaces as name", "empty allocation", "wrong checksum", "9999 in all", "preset 'yearly'"],
)
def test_one_invalid_field_rejects_an_update_whose_other_fields_are_valid(client, stack, rejected, title):
    valid = {"name": "New", "allocation": spread(ADDRESSES), "schedule": {"preset": "daily"}}
    body = body_with(valid, *FAULTS[title])
    rejected(400, "invalid_request", client.update, stack["id"], body)
    assert client.get(stack["id"]).json == stack


def test_the_message_says_only_whether_it_is_not_json_or_not_a_configuration(client):
    def messages(bodies) -> set[str]:
        return {client.create(body).json["message"] for body in bodies}

    assert messages(NOT_JSON.values()) == {
        "The request body is not a complete JSON document sent as application/json."
    }
    not_configurations = [field_text(name, text) for name, text in FAULTS.values()]
    assert messages([*not_configurations, *NOT_AN_OBJECT.values()]) == {"The stack configuration is invalid."}
