"""Errors: the closed table of codes, the content of a response, unexpected failures."""

import gc
import logging
import weakref
from unittest.mock import patch
from uuid import uuid4

import pytest

from stackmgr import errors
from stackmgr.access import api_keys
from stackmgr.access.verifiers import Identity
from stackmgr.access.verifiers.database import DatabaseVerifier
from stackmgr.database.pool import Database
from stackmgr.errors import BindingConflict, CircuitOpen, Overloaded, RateLimited, ServiceUnavailable
from stackmgr.http import app
from stackmgr.monitoring.logs import Formatter
from tests.support.client import STATUS
from tests.support.examples import MISSING, configuration
from tests.support.fixed_verifier import FixedVerifier
from tests.support.recorder import opened

# An identity whose verification needed no database.
KNOWN = Identity(identity_id="tests", external_id=str(uuid4()), manager_id=str(uuid4()))
OPERATIONS = {
    "create": lambda client: client.create(configuration()),
    "list": lambda client: client.page(),
    "get": lambda client: client.get(MISSING),
    "update": lambda client: client.update(MISSING, {"name": "New"}),
}
operations = pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)


@pytest.fixture
def behind(client_with, database):
    # A key of the right form that was never issued.
    key = api_keys.generate()
    return lambda verifier, on=database: client_with(key, verifier=verifier, database=on)


def test_the_codes_are_a_closed_table():
    classes = [errors.ServiceError]
    for error in classes:  # grows while it is walked
        classes += error.__subclasses__()
    pairs = {(error.code, error.status) for error in classes}
    assert pairs == {*STATUS.items(), ("invalid_request", 405)}


@pytest.mark.parametrize("failure", [RateLimited, ServiceUnavailable])
@pytest.mark.parametrize(("seconds", "value"), [(7, "7"), (0, "0"), (None, None)])
def test_retry_after_is_the_verifiers(behind, failure, seconds, value):
    response = behind(FixedVerifier(failure("busy", retry_after=seconds))).page()
    assert response.headers.get("Retry-After") == value


@pytest.mark.parametrize("failure", [BindingConflict, CircuitOpen, Overloaded])
def test_some_errors_are_not_logged_each_time(behind, caplog, failure):
    assert behind(FixedVerifier(failure())).page().status_int == failure.status
    assert "a request failed" not in caplog.text


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_failing_database_is_503_then_500(behind, server_url, rejected, caplog, name):
    """It lacks every table, or no server listens."""
    for url, deadline in ((server_url, 60.0), ("postgresql://nobody@127.0.0.1:1/nothing", 0.5)):
        with opened(url, pool_size=1, deadline=deadline) as database:
            rejected(503, "service_unavailable", OPERATIONS[name], behind(DatabaseVerifier(), database))
            rejected(500, "internal_error", OPERATIONS[name], behind(FixedVerifier(KNOWN), database))
    failed = [record for record in caplog.records if record.getMessage() == "a request failed"]
    assert failed[1].fields["causes"][0] == f"DatabaseError rejected stack_{name} 3F000"


@operations
def test_each_request_has_its_own_deadline(client, operation):
    with patch.object(Database, "session", autospec=True, side_effect=Database.session) as session:
        assert {operation(client).status_int for _ in range(2)} < {200, 201, 404}
    assert session.call_count == 2


@operations
def test_an_unexpected_failure_shows_no_detail(behind, rejected, caplog, operation):
    failing = behind(FixedVerifier(KeyError("a secret of the client")))
    with caplog.at_level(logging.ERROR, logger="stackmgr"):
        response = rejected(500, "internal_error", operation, failing)
    assert response.json["message"] == "An unexpected error occurred."
    logged = "".join(map(Formatter().format, caplog.records))
    assert "KeyError" in logged
    assert "a secret" not in logged + caplog.text


def test_a_retry_finds_what_was_committed(client, row_counts, monkeypatch):
    stacks = row_counts()["stacks"]
    with monkeypatch.context() as broken:
        broken.setattr("stackmgr.http.resources.serialize_stack", lambda stack: {}[stack])
        assert client.create(configuration(), "key").status_int == 500
    assert row_counts()["stacks"] == stacks + 1
    assert client.create(configuration(), "key").status_int == 200
    assert row_counts()["stacks"] == stacks + 1


def test_an_error_keeps_no_body(client, monkeypatch):
    bodies, respond = [], app._respond

    def noted(req, *rest):
        bodies.append(weakref.ref(req.env["wsgi.input"]))
        respond(req, *rest)

    monkeypatch.setattr(app, "_respond", noted)
    gc.disable()
    try:
        assert (client.create({}).status_int, [body() for body in bodies]) == (400, [None])
    finally:
        gc.enable()
