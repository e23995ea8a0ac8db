"""A request with two faults: the response reports the one that the contract checks first."""

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import uuid4

import pytest

from stackmgr import errors
from stackmgr.errors import RateLimited, ServiceError, ServiceUnavailable
from tests.contract.raw_wsgi import Input, call
from tests.support.client import STACKS, Client
from tests.support.examples import configuration
from tests.support.fixed_verifier import FixedVerifier

LIMIT = 262144


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
        environ = dict(self.environ)
        if self.announced:
            environ["CONTENT_LENGTH"] = str(len(self.body) + self.missing_bytes)
        else:
            environ["wsgi.input_terminated"] = True
        return call(app, client, self.method, self.path, Input(self.body), **environ)


@dataclass(frozen=True)
class Fault:
    """One fault of a request, and the response to a request with this fault alone."""

    title: str
    status: int
    error: type[ServiceError]
    apply: Callable[[Draft], None]


def _leave_route(draft: Draft) -> None:
    draft.path += "/x/y"


def _change_method(draft: Draft) -> None:
    draft.method = "DELETE"


def _drop_credential(draft: Draft) -> None:
    draft.environ["HTTP_AUTHORIZATION"] = ""


def _announce_too_much(draft: Draft) -> None:
    draft.body = draft.body.ljust(LIMIT + 1)


def _send_invalid_id(draft: Draft) -> None:
    draft.path = f"{STACKS}/1"


def _blank_key(draft: Draft) -> None:
    draft.environ["HTTP_IDEMPOTENCY_KEY"] = " "


def _change_media_type(draft: Draft) -> None:
    draft.environ["CONTENT_TYPE"] = "text/plain"


def _encode(draft: Draft) -> None:
    draft.environ["HTTP_CONTENT_ENCODING"] = "gzip"


def _run_over(draft: Draft) -> None:
    draft.body = draft.body.ljust(LIMIT + 1)
    draft.announced = False


def _cut_short(draft: Draft) -> None:
    draft.missing_bytes = 1


def _break_json(draft: Draft) -> None:
    draft.body += b"{"


def _break_rule(draft: Draft) -> None:
    draft.body = b'{"name":" "}'


def _reuse_key(draft: Draft) -> None:
    draft.environ["HTTP_IDEMPOTENCY_KEY"] = "used"


def _miss_stack(draft: Draft) -> None:
    draft.path = f"{STACKS}/{uuid4()}"


ROUTE = Fault("no route", 404, errors.NotFound, _leave_route)
METHOD = Fault("no such method", 405, errors.MethodNotAllowed, _change_method)
CREDENTIAL = Fault("no credential", 401, errors.Unauthorized, _drop_credential)
ANNOUNCED = Fault("too large a length", 413, errors.PayloadTooLarge, _announce_too_much)
ID = Fault("no UUID", 400, errors.InvalidStackId, _send_invalid_id)
KEY = Fault("blank key", 400, errors.InvalidIdempotencyKey, _blank_key)
MEDIA_TYPE = Fault("another media type", 400, errors.InvalidBody, _change_media_type)
CODING = Fault("a coding", 400, errors.InvalidBody, _encode)
OVERRUN = Fault("too large a body", 413, errors.PayloadTooLarge, _run_over)
CUT = Fault("cut short", 400, errors.InvalidBody, _cut_short)
JSON = Fault("not JSON", 400, errors.InvalidBody, _break_json)
RULE = Fault("not a configuration", 400, errors.InvalidConfiguration, _break_rule)
CONFLICT = Fault("a used key", 409, errors.Conflict, _reuse_key)
MISSING = Fault("no such stack", 404, errors.NotFound, _miss_stack)

BODY_FAULTS = (MEDIA_TYPE, CODING, OVERRUN, CUT, JSON, RULE)
CREATE = (ROUTE, METHOD, CREDENTIAL, ANNOUNCED, KEY, *BODY_FAULTS, CONFLICT)
UPDATE = (ROUTE, METHOD, CREDENTIAL, ANNOUNCED, ID, *BODY_FAULTS, MISSING)

# A body either announces its length or it does not, and cannot end both too late and too early.
IMPOSSIBLE = ({ANNOUNCED, OVERRUN}, {OVERRUN, CUT})


def _combinations(faults: tuple[Fault, ...]):
    pairs = [pair for pair in itertools.combinations(faults, 2) if set(pair) not in IMPOSSIBLE]
    return [
        pytest.param(some, id=", ".join(fault.title for fault in some))
        for some in (*((fault,) for fault in faults), *pairs)
    ]


def _malformed(draft: Draft, faults: tuple[Fault, ...]) -> Draft:
    # The later check's fault first, so that it cannot undo what the earlier check is to find.
    for fault in reversed(faults):
        fault.apply(draft)
    return draft


def _create() -> Draft:
    body = json.dumps(configuration(name="Another")).encode()
    return Draft("POST", STACKS, body, {"HTTP_IDEMPOTENCY_KEY": "new"})


@pytest.mark.parametrize("faults", _combinations(CREATE))
def test_the_faults_of_a_create_are_checked_in_order(app, client, rejected, faults):
    client.create(configuration(), "used")
    response = rejected(
        faults[0].status, faults[0].error.code, _malformed(_create(), faults).send, app, client
    )
    assert response.json["message"] == faults[0].error.message
    assert _create().send(app, client).status_int == 201


@pytest.mark.parametrize("faults", _combinations(UPDATE))
def test_the_faults_of_an_update_are_checked_in_order(app, client, stack, rejected, faults):
    draft = Draft("PATCH", f"{STACKS}/{stack['id']}", b'{"name":"New"}')
    response = rejected(faults[0].status, faults[0].error.code, _malformed(draft, faults).send, app, client)
    assert response.json["message"] == faults[0].error.message
    assert client.get(stack["id"]).json == stack


each_failure = pytest.mark.parametrize(
    "failure",
    [
        (401, errors.Unauthorized("no")),
        (429, RateLimited("slow")),
        (503, ServiceUnavailable("away")),
        (500, errors.BindingConflict("bound")),
    ],
    ids=["unauthorized", "limited", "unavailable", "conflicting"],
)


@each_failure
@pytest.mark.parametrize("method", ["POST", "PATCH"])
def test_a_failed_verification_precedes_every_other_error(serving, client, rejected, failure, method):
    status, outcome = failure
    draft = Draft(method, STACKS if method == "POST" else f"{STACKS}/1", b"{}")
    malformed = _malformed(draft, (ANNOUNCED, KEY, MEDIA_TYPE, JSON))
    rejected(status, outcome.code, malformed.send, serving(FixedVerifier(outcome)), client)


@pytest.mark.parametrize("path", [f"{STACKS}?limit=0", f"{STACKS}?cursor=", f"{STACKS}/1"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
@each_failure
def test_a_failed_verification_precedes_the_error_of_a_read(serving, client, failure, path, method):
    status, outcome = failure
    assert Draft(method, path, b"").send(serving(FixedVerifier(outcome)), client).status_int == status
    assert client.request(method, path).status_int == 400


@pytest.mark.parametrize("fault", [ROUTE, METHOD], ids=lambda fault: fault.title)
def test_a_request_without_an_operation_is_not_authenticated(serving, client, rejected, fault):
    verifier = FixedVerifier(AssertionError("called"))
    rejected(fault.status, fault.error.code, _malformed(_create(), (fault,)).send, serving(verifier), client)
    assert verifier.calls == 0
