"""Isolation of managers: the response for another manager's stack equals that for a missing one."""

import json
from uuid import uuid4

import pytest

from tests.support.client import STACKS, Client
from tests.support.examples import configuration, padded

GOOD = json.dumps(configuration(name="Stolen")).encode()
REQUESTS = {
    "read": ("GET", None, {}),
    "read headers": ("HEAD", None, {}),
    "update": ("PATCH", GOOD, {}),
    "update, not JSON": ("PATCH", b"{", {}),
    "update, no field": ("PATCH", b"{}", {}),
    "update, too large": ("PATCH", padded({"name": "Stolen"}, 262145), {}),
    "update, not sent as JSON": ("PATCH", GOOD, {"Content-Type": "text/plain"}),
    "update, any version": ("PATCH", GOOD, {"If-Match": "*"}),
    "remove": ("DELETE", None, {}),
    "replace": ("PUT", GOOD, {}),
    "post": ("POST", GOOD, {"Idempotency-Key": "key"}),
}


@pytest.fixture
def theirs(make_client) -> Client:
    """Another manager, who has a stack."""
    other: Client = make_client()
    other.create(configuration(name="Theirs"), "key")
    return other


@pytest.mark.parametrize("in_capitals", [False, True], ids=["id as given", "id in capitals"])
@pytest.mark.parametrize("title", REQUESTS)
def test_a_foreign_stack_is_a_missing_one(client, theirs, unchanged, title, in_capitals):
    method, body, headers = REQUESTS[title]
    [foreign] = theirs.page().json["items"]
    for _ in range(2):  # after these the service knows the key and its manager
        client.page()
    responses = []
    for stack_id in (foreign["id"], str(uuid4())):
        path = f"{STACKS}/{stack_id.upper() if in_capitals else stack_id}"
        response = unchanged(client.request, method, path, body, headers | {"X-Request-Id": "same"})
        responses.append((response.status, response.headerlist, response.body, client.statements))
    assert responses[0] == responses[1]
    assert responses[0][0][:3] in ("404", "400", "405", "413")
    assert theirs.page().json["items"] == [foreign]


def test_only_the_key_chooses_a_manager(client, theirs):
    claims = {
        "X-Manager-Id": theirs.external_id,
        "Manager-Id": theirs.external_id,
        "Cookie": "manager=theirs",
    }
    created = client.create(configuration(), headers=claims)
    assert created.status_int == 201
    assert client.request("GET", STACKS, headers=claims).json["items"] == [created.json]
    assert created.json["id"] not in theirs.walk(100)
