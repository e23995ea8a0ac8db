"""Every response that the OpenAPI document describes: the application returns it as described."""

from uuid import uuid4

import pytest

from stackmgr.errors import BindingConflict, RateLimited, ServiceUnavailable
from stackmgr.limits import BODY_LIMIT_BYTES as BODY_LIMIT
from tests.support import openapi
from tests.support.examples import configuration
from tests.support.fixed_verifier import FixedVerifier

UNREMARKABLE = {"content-type", "content-length"}
TOO_LONG = b" " * (BODY_LIMIT + 1)

ACCEPTED = {
    "createStack": lambda client: client.create(configuration()),
    "listStacks": lambda client: client.page("limit=1"),
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
VERIFIER_ERRORS = {"429": RateLimited(retry_after=7), "500": BindingConflict(), "503": ServiceUnavailable()}


def existing(client):
    """The id of a stack of the client's, or of none where its key is rejected anyway."""
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
        if header["required"] or name in response.headers:
            value = response.headers[name]
            openapi.check(header["schema"], int(value) if header["schema"]["type"] == "integer" else value)


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
