"""`stackmgr explain` and the service decide alike on every body; its reasons include the service's."""

import json
import os
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stackmgr import paths
from stackmgr.access.verifiers import Identity
from stackmgr.commands.explain import _document, _normalized
from stackmgr.dev.explanations import CREATE, UPDATE, Explanation, explain
from stackmgr.http.app import create_app
from stackmgr.http.schemas import inline_references, read_schema
from stackmgr.stacks import whitelist
from stackmgr.stacks.configuration import Configuration
from tests.properties.bodies import CORPUS, bodies
from tests.properties.calling import call
from tests.support.client import STACKS
from tests.support.examples import configuration
from tests.support.fixed_verifier import FixedVerifier

BODIES = int(os.environ.get("STACKMGR_PROPERTY_BODIES", "300"))
LISTED = whitelist.load(paths.default_whitelist())


class Service:
    """The application with a stack to update, and the fields of its last request line."""

    def __init__(self, database, spellings, admin: psycopg.Connection) -> None:
        manager_id, external_id = str(uuid4()), str(uuid4())
        admin.execute(
            "INSERT INTO stackmgr.managers (manager_id, external_id, identity_id) VALUES (%s, %s, %s)",
            (manager_id, external_id, external_id),
        )
        self._admin = admin
        self._lines: list[dict[str, Any]] = []
        self._app = create_app(
            database=database,
            verifier=FixedVerifier(Identity(external_id, external_id, manager_id)),
            spellings=spellings,
            log=lambda fields: self._lines.append(dict(fields)),
        )
        first = call(self._app, "POST", STACKS, json.dumps(configuration()).encode(), str(uuid4()))
        self._stack = json.loads(first.body)

    def check(self, body: bytes, schema: str) -> None:
        method, path = ("POST", STACKS) if schema == CREATE else ("PATCH", f"{STACKS}/{self._stack['id']}")
        key = str(uuid4())
        response = call(self._app, method, path, body, key)
        explained = explain(body, schema, LISTED)
        if explained.error is None:
            assert response.status == (201 if schema == CREATE else 200)
            self._check_accepted(json.loads(response.body), explained, key)
        else:
            assert response.status == explained.error.status
            assert self._lines[-1]["code"] == explained.error.code
            assert self._lines[-1]["reason"] in {reason.rule for reason in explained.reasons}
        # Whatever the body holds, the reasons can be printed.
        document = json.dumps(_document("body", explained))
        assert bool(explained.reasons) == (explained.error is not None)
        assert len(document) < 400_000 + len(body) * 40

    def _check_accepted(self, saved: dict[str, Any], explained: Explanation, key: str) -> None:
        normalized = _normalized(explained.accepted)
        assert {name: saved[name] for name in normalized} == normalized
        if isinstance(explained.accepted, Configuration):
            row = self._admin.execute(
                "SELECT input_digest FROM stackmgr.creation_receipts WHERE idempotency_key = %s", [key]
            ).fetchone()
            assert row == (explained.accepted.digest(),)


@pytest.fixture
def service(database, spellings, admin):
    return Service(database, spellings, admin)


@pytest.mark.parametrize("schema", [CREATE, UPDATE])
def test_they_decide_alike_on_every_body_of_the_corpus(service, schema):
    for body in CORPUS:
        service.check(body, schema)


def test_they_decide_alike_on_generated_bodies(service):
    @settings(max_examples=BODIES)
    @given(bodies, st.sampled_from([CREATE, UPDATE]))
    def check(body, schema):
        service.check(body, schema)

    check()


def test_the_schemas_have_no_keyword_that_explain_does_not_know():
    known = {
        *("type", "required", "properties", "additionalProperties", "items", "enum", "pattern", "title"),
        *("minimum", "maximum", "minLength", "minItems", "maxItems", "minProperties", "description", "id"),
        *("$schema",),
    }

    def keywords(schema: dict[str, Any]) -> set[str]:
        inner = [*schema.get("properties", {}).values(), *([schema["items"]] if "items" in schema else [])]
        return set(schema).union(*map(keywords, inner))

    for name in (CREATE, UPDATE):
        assert keywords(inline_references(read_schema(name))) <= known
