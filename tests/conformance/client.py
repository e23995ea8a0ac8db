"""A client of a deployment under test: sends requests as given, and checks the rules of every response.

The rules of sections 1, 2.8, 4.5 and 7 that hold for every response are checked on each.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import urllib3

from stackmgr.limits import CANONICAL_UUID
from stackmgr.stacks.whitelist import Whitelist

STACKS = "/manager/stacks"
CODES = {
    400: {"invalid_request"}, 401: {"unauthorized"}, 404: {"not_found"}, 405: {"invalid_request"},
    409: {"conflict"}, 413: {"payload_too_large"}, 429: {"rate_limited"}, 500: {"internal_error"},
    503: {"service_unavailable"},
}  # fmt: skip
_STACK_FIELDS = {"id", "current_revision_id", "name", "allocation", "schedule"}
_ADDRESS = re.compile(r"0x[0-9a-f]{40}")
_UUID = re.compile(CANONICAL_UUID)
_TIMEOUT_SECONDS = 30.0


class Failed(Exception):
    """The deployment breaks a rule; the message says how."""


def expect(kept: object, message: str) -> None:
    """Raise Failed with *message* unless *kept* is true."""
    if not kept:
        raise Failed(message)


def status(response: "Response", *wanted: int) -> None:
    """Raise Failed unless the response has one of the *wanted* status codes."""
    expect(response.status in wanted, f"status {response.status}, not {' or '.join(map(str, wanted))}")


@dataclass(frozen=True)
class Response:
    """A response; header names are in lowercase, repeated ones joined with a comma."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON.  Raises Failed where it is something else."""
        try:
            return json.loads(self.body)
        except ValueError as ex:
            raise Failed(f"status {self.status} with a body that is not JSON: {self.body[:40]!r}") from ex


class Client:
    """One manager's view of the deployment at *base*."""

    def __init__(self, base: str, key: str) -> None:
        self._base = base.rstrip("/")
        self._key = key
        self._http = urllib3.PoolManager(retries=False, timeout=_TIMEOUT_SECONDS)

    def request(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str | None] | None = None
    ) -> Response:
        """Send a request, check the rules of every response, and return the response.

        *body* is sent as it is if it is bytes, otherwise as JSON.  A header given as None is left out.
        """
        given: dict[str, str | None] = {"Authorization": f"Bearer {self._key}"}
        if body is not None:
            given["Content-Type"] = "application/json"
        sent = {name: value for name, value in (given | dict(headers or {})).items() if value is not None}
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        answer = self._http.request(method, self._base + path, body=data, headers=sent, redirect=False)
        received = {name.lower(): ", ".join(answer.headers.getlist(name)) for name in answer.headers}
        response = Response(answer.status, received, answer.data)
        _check(method, response, sent.get("X-Request-Id", "").strip(" \t"))
        return response

    def create(self, document: Any, key: str | None = None, **headers: str | None) -> Response:
        """POST a create body under an Idempotency-Key, by default a new one."""
        return self.request("POST", STACKS, document, {"Idempotency-Key": key or str(uuid4()), **headers})

    def created(self, document: Any) -> Any:
        """Create a stack and return it."""
        response = self.create(document)
        status(response, 201)
        return stack_of(response)

    def update(self, stack_id: str, document: Any, **headers: str | None) -> Response:
        """PATCH a stack."""
        return self.request("PATCH", f"{STACKS}/{stack_id}", document, headers)

    def get(self, stack_id: str) -> Response:
        """GET a stack."""
        return self.request("GET", f"{STACKS}/{stack_id}")

    def page(self, query: str = "") -> Response:
        """GET a page of the list."""
        return self.request("GET", f"{STACKS}?{query}" if query else STACKS)


@dataclass(frozen=True)
class Deployment:
    """What is tested: the clients of two managers, and the whitelist."""

    first: Client
    second: Client
    listed: Whitelist

    def body(self, **fields: Any) -> dict[str, Any]:
        """Return a valid create body, with other fields in place of its own."""
        return {
            "name": "conformance",
            "allocation": self.allocation(6000, 4000),
            "schedule": {"preset": "weekly"},
        } | fields

    def allocation(self, *weights: Any) -> list[dict[str, Any]]:
        """Return an allocation of the first tokens of the whitelist with these weights."""
        addresses = sorted(self.listed.tokens)
        return [
            {"token_address": address, "weight_bps": weight}
            for address, weight in zip(addresses, weights, strict=False)
        ]


def _check(method: str, response: Response, request_id: str) -> None:
    """Check the rules of every response, and those of every error."""
    for name in response.headers:
        expect(not name.startswith("access-control-"), f"4.5, 5.8: a CORS header, {name}")
    expect("set-cookie" not in response.headers, "5.8: a cookie")
    echoed = response.headers.get("x-request-id", "")
    expect(echoed, f"4.5: no X-Request-Id on a response with status {response.status}")
    if request_id:
        expect(echoed == request_id, "4.5: X-Request-Id is not the one of the request")
    else:
        expect(_UUID.fullmatch(echoed.lower()), "4.5: the generated X-Request-Id is no UUID")
    if response.status < 400 or method == "HEAD":
        return
    error = response.json
    expect(isinstance(error, dict), "2.8: an error that is no object")
    expect(set(error) == {"code", "message", "request_id"}, f"2.8: an error with the fields {sorted(error)}")
    expect(error["code"] in CODES.get(response.status, set()), f"7: {response.status} with {error['code']!r}")
    expect(isinstance(error["message"], str) and error["message"], "2.8: an error without a message")
    expect(error["request_id"] == echoed, "2.8: request_id is not the X-Request-Id of the response")


def stack_of(response: Response) -> Any:
    """Return the Stack of a create, get or update, after a check of its form and its ETag."""
    stack = response.json
    check_stack(stack)
    etag = response.headers.get("etag")
    expect(
        etag == f'"{stack["current_revision_id"]}"', f"4.5: the ETag is {etag}, not the quoted revision id"
    )
    return stack


def check_stack(stack: Any) -> None:
    """Check the form of a Stack (2.1)."""
    expect(isinstance(stack, dict), "2.1: a stack that is no object")
    expect(set(stack) == _STACK_FIELDS, f"2.1: a stack with the fields {sorted(stack)}")
    expect(_UUID.fullmatch(stack["id"]), "2.1: id is not a lowercase UUID")
    expect(_UUID.fullmatch(stack["current_revision_id"]), "2.1: current_revision_id is not a lowercase UUID")
    addresses = [item["token_address"] for item in stack["allocation"]]
    expect(all(map(_ADDRESS.fullmatch, addresses)), "2.2: an address that is not lowercase")
    expect(
        addresses == sorted(set(addresses)), "2.1: the allocation is not sorted by address, or repeats one"
    )
    expect(
        sum(item["weight_bps"] for item in stack["allocation"]) == 10000, "2.1: weights do not total 10000"
    )
    expect(set(stack["schedule"]) == {"preset"}, "2.3: a schedule with other fields than preset")
