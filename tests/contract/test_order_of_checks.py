"""A request with two faults: the response reports the one that the contract checks first."""

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import pytest

from stackmgr import errors
from stackmgr.errors import RateLimited, ServiceError, ServiceUnavailable
from tests.contract.raw_wsgi import Input, call
from tests.support.client import STACKS, Client
from tests.support.examples import configuration
from tests.support.fixed_verifier import FixedVerifier

TOO_LONG = 262145


@dataclass
class Draft:
    """A request in the making, valid until it is malformed."""

    method: str
    path: str
    body: bytes
    environ: dict[str, str | bool] = field(default_factory=dict)
    announced: bool = True
    missing_bytes: int = 0

    def send(self, app, client: Client):
        if self.announced:
            length = {"CONTENT_LENGTH": str(len(self.body) + self.missing_bytes)}
        else:
            length = {"wsgi.input_terminated": True}
        return call(app, client, self.method, self.path, Input(self.body), **(self.environ | length))


@dataclass(frozen=True)
class Fault:
    """One fault of a request: what it changes, and the error of a request with this fault alone."""

    title: str
    error: type[ServiceError]
    changes: Callable[[Draft], dict[str, Any]]

    def apply(self, draft: Draft) -> None:
        for name, value in self.changes(draft).items():
            setattr(draft, name, value)


def _with(**environ: str) -> Callable[[Draft], dict[str, Any]]:
    return lambda draft: {"environ": draft.environ | environ}


def _too_long(draft: Draft) -> bytes:
    return draft.body.ljust(TOO_LONG)


ROUTE = Fault("no route", errors.NotFound, lambda draft: {"path": draft.path + "/x/y"})
METHOD = Fault("no such method", errors.MethodNotAllowed, lambda _: {"method": "DELETE"})
CREDENTIAL = Fault("no credential", errors.Unauthorized, _with(HTTP_AUTHORIZATION=""))
ANNOUNCED = Fault("too large a length", errors.PayloadTooLarge, lambda draft: {"body": _too_long(draft)})
ID = Fault("no UUID", errors.InvalidStackId, lambda _: {"path": f"{STACKS}/1"})
KEY = Fault("blank key", errors.InvalidIdempotencyKey, _with(HTTP_IDEMPOTENCY_KEY=" "))
CONFLICT = Fault("a used key", errors.Conflict, _with(HTTP_IDEMPOTENCY_KEY="used"))
MISSING = Fault("no such stack", errors.NotFound, lambda _: {"path": f"{STACKS}/{uuid4()}"})

OVERRUN = Fault(
    "too large a body", errors.PayloadTooLarge, lambda draft: {"body": _too_long(draft), "announced": False}
)
CUT = Fault("cut short", errors.InvalidBody, lambda _: {"missing_bytes": 1})
BODY_FAULTS = (
    Fault("another media type", errors.InvalidBody, _with(CONTENT_TYPE="text/plain")),
    Fault("a coding", errors.InvalidBody, _with(HTTP_CONTENT_ENCODING="gzip")),
    OVERRUN,
    CUT,
    Fault("not JSON", errors.InvalidBody, lambda draft: {"body": draft.body + b"{"}),
    Fault("not a configuration", errors.InvalidConfiguration, lambda _: {"body": b'{"name":" "}'}),
)
CREATE = (ROUTE, METHOD, CREDENTIAL, ANNOUNCED, KEY, *BODY_FAULTS, CONFLICT)
UPDATE = (ROUTE, METHOD, CREDENTIAL, ANNOUNCED, ID, *BODY_FAULTS, MISSING)

# A body either announces its length or it does not, and cannot end both too late and too early.
IMPOSSIBLE = ({ANNOUNCED, OVERRUN}, {OVERRUN, CUT})


def one_or_two_of(faults: tuple[Fault, ...]) -> pytest.MarkDecorator:
    pairs = [pair for pair in itertools.combinations(faults, 2) if set(pair) not in IMPOSSIBLE]
    some = [*((fault,) for fault in faults), *pairs]
    return pytest.mark.parametrize("faults", some, ids=[", ".join(f.title for f in each) for each in some])


def malformed(draft: Draft, faults: tuple[Fault, ...]) -> Draft:
    # The later check's fault first, so that it cannot undo what the earlier check is to find.
    for fault in reversed(faults):
        fault.apply(draft)
    return draft


def create() -> Draft:
    body = json.dumps(configuration(name="Another")).encode()
    return Draft("POST", STACKS, body, {"HTTP_IDEMPOTENCY_KEY": "new"})


@one_or_two_of(CREATE)
def test_the_faults_of_a_create_are_checked_in_order(app, client, rejected, faults):
    client.create(configuration(), "used")
    error = faults[0].error
    response = rejected(error.status, error.code, malformed(create(), faults).send, app, client)
    assert response.json["message"] == error.message
    assert create().send(app, client).status_int == 201


@one_or_two_of(UPDATE)
def test_the_faults_of_an_update_are_checked_in_order(app, client, stack, rejected, faults):
    draft = Draft("PATCH", f"{STACKS}/{stack['id']}", b'{"name":"New"}')
    error = faults[0].error
    response = rejected(error.status, error.code, malformed(draft, faults).send, app, client)
    assert response.json["message"] == error.message
    assert client.get(stack["id"]).json == stack


failed_verifications = pytest.mark.parametrize(
    "outcome",
    [
        errors.Unauthorized("no"),
        RateLimited("slow"),
        ServiceUnavailable("away"),
        errors.BindingConflict("bound"),
    ],
    ids=["unauthorized", "limited", "unavailable", "conflicting"],
)


@failed_verifications
@pytest.mark.parametrize("method", ["POST", "PATCH"])
def test_a_failed_verification_precedes_every_other_error(serving, client, rejected, outcome, method):
    draft = Draft(method, STACKS if method == "POST" else f"{STACKS}/1", b"{}")
    send = malformed(draft, (ANNOUNCED, KEY, *BODY_FAULTS[:2], *BODY_FAULTS[4:])).send
    rejected(outcome.status, outcome.code, send, serving(FixedVerifier(outcome)), client)


@failed_verifications
@pytest.mark.parametrize("path", [f"{STACKS}?limit=0", f"{STACKS}?cursor=", f"{STACKS}/1"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_failed_verification_precedes_the_error_of_a_read(serving, client, outcome, path, method):
    app = serving(FixedVerifier(outcome))
    assert Draft(method, path, b"").send(app, client).status_int == outcome.status
    assert client.request(method, path).status_int == 400


@pytest.mark.parametrize("fault", [ROUTE, METHOD], ids=lambda fault: fault.title)
def test_a_request_without_an_operation_is_not_authenticated(serving, client, rejected, fault):
    verifier = FixedVerifier(AssertionError("called"))
    error, draft = fault.error, malformed(create(), (fault,))
    rejected(error.status, error.code, draft.send, serving(verifier), client)
    assert verifier.calls == 0
