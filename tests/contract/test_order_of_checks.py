"""A request with two faults: the response reports the one that the contract checks first."""

import itertools
import json
from typing import Any, NamedTuple
from uuid import uuid4

import pytest

from stackmgr import errors
from tests.contract.raw_wsgi import Input, call
from tests.support.client import STACKS
from tests.support.examples import configuration
from tests.support.fixed_verifier import FixedVerifier

TOO_LONG = 262145
CHUNKED = {"wsgi.input_terminated": True}


class Draft(NamedTuple):
    """A request in the making, valid until a fault is applied to it."""

    method: str
    path: str
    body: bytes = b""
    environ: dict[str, str] = {}  # noqa: RUF012 - replaced, never changed
    length: int | None = 0  # what is announced more than the body has, or that nothing is announced

    def send(self, app, client):
        announced = self.length is not None
        length = {"CONTENT_LENGTH": str(len(self.body) + self.length)} if announced else CHUNKED
        return call(app, client, self.method, self.path, Input(self.body), **self.environ | length)


class Fault(NamedTuple):
    """A fault: its change of a request, and the error of a request with this fault alone."""

    title: str
    error: type[errors.ServiceError]
    changes: dict[str, Any]

    def apply(self, draft: Draft) -> Draft:
        changes = {name: new(draft) if callable(new) else new for name, new in self.changes.items()}
        return draft._replace(**changes | {"environ": draft.environ | changes.get("environ", {})})


def too_long(draft: Draft) -> bytes:
    return draft.body.ljust(TOO_LONG)


ROUTE = Fault("no route", errors.NotFound, {"path": lambda draft: draft.path + "/x/y"})
METHOD = Fault("no such method", errors.MethodNotAllowed, {"method": "DELETE"})
CREDENTIAL = Fault("no credential", errors.Unauthorized, {"environ": {"HTTP_AUTHORIZATION": ""}})
ANNOUNCED = Fault("too large a length", errors.PayloadTooLarge, {"body": too_long})
ID = Fault("no UUID", errors.InvalidStackId, {"path": f"{STACKS}/1"})
KEY = Fault("blank key", errors.InvalidIdempotencyKey, {"environ": {"HTTP_IDEMPOTENCY_KEY": " "}})
CONFLICT = Fault("a used key", errors.Conflict, {"environ": {"HTTP_IDEMPOTENCY_KEY": "used"}})
MISSING = Fault("no such stack", errors.NotFound, {"path": f"{STACKS}/{uuid4()}"})
OVERRUN = Fault("too large a body", errors.PayloadTooLarge, {"body": too_long, "length": None})
CUT = Fault("cut short", errors.InvalidBody, {"length": 1})
BODY_FAULTS = (
    Fault("another media type", errors.InvalidBody, {"environ": {"CONTENT_TYPE": "text/plain"}}),
    Fault("a coding", errors.InvalidBody, {"environ": {"HTTP_CONTENT_ENCODING": "gzip"}}), OVERRUN, CUT,
    Fault("not JSON", errors.InvalidBody, {"body": lambda draft: draft.body + b"{"}),
    Fault("not a configuration", errors.InvalidConfiguration, {"body": b'{"name":" "}'}),
)  # fmt: skip
CREATE = (ROUTE, METHOD, CREDENTIAL, ANNOUNCED, KEY, *BODY_FAULTS, CONFLICT)
UPDATE = (ROUTE, METHOD, CREDENTIAL, ANNOUNCED, ID, *BODY_FAULTS, MISSING)
# A body either announces its length or it does not, and cannot end both too late and too early.
IMPOSSIBLE = ({"too large a length", "too large a body"}, {"too large a body", "cut short"})


def malformed(draft: Draft, *faults: Fault) -> Draft:
    # The later check's fault first, so that it cannot undo what the earlier check is to find.
    for fault in reversed(faults):
        draft = fault.apply(draft)
    return draft


VALID = Draft("POST", STACKS, json.dumps(configuration(name="New")).encode(), {"HTTP_IDEMPOTENCY_KEY": "new"})
ONE_OR_TWO = [
    (operation, some)
    for operation, faults in (("create", CREATE), ("update", UPDATE))
    for number in (1, 2)
    for some in itertools.combinations(faults, number)
    if {fault.title for fault in some} not in IMPOSSIBLE
]


@pytest.mark.parametrize(
    ("operation", "faults"),
    ONE_OR_TWO,
    ids=[f"{operation}: {', '.join(fault.title for fault in faults)}" for operation, faults in ONE_OR_TWO],
)
def test_faults_are_checked_in_order(app, client, rejected, operation, faults):
    stack = client.create(configuration(), "used").json
    update = Draft("PATCH", f"{STACKS}/{stack['id']}", b'{"name":"New"}')
    valid = VALID if operation == "create" else update
    error = faults[0].error
    response = rejected(error.status, error.code, malformed(valid, *faults).send, app, client)
    assert response.json["message"] == error.message
    assert client.page().json["items"] == [stack]
    assert valid.send(app, client).status_int in (200, 201)


OF_A_BODY = (ANNOUNCED, KEY, *BODY_FAULTS[:2], *BODY_FAULTS[4:])
INVALID = [
    malformed(Draft("POST", STACKS, b"{}"), *OF_A_BODY),
    malformed(Draft("PATCH", f"{STACKS}/1", b"{}"), *OF_A_BODY),
    *(Draft(method, STACKS + rest) for method in ("GET", "HEAD") for rest in ("?limit=0", "?cursor=", "/1")),
]


@pytest.mark.parametrize("outcome", [
    errors.Unauthorized(), errors.RateLimited(), errors.ServiceUnavailable(),
    errors.BindingConflict(),
], ids=["unauthorized", "limited", "unavailable", "conflicting"])  # fmt: skip
@pytest.mark.parametrize("draft", INVALID, ids=lambda draft: f"{draft.method} {draft.path}")
def test_a_failed_verification_comes_first(app, serving, client, outcome, draft):
    assert draft.send(serving(FixedVerifier(outcome)), client).status_int == outcome.status
    assert draft.send(app, client).status_int in (400, 413)
