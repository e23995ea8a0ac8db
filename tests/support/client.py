"""A client that checks, in every response it gets, what the contract promises of every response."""

import json
import os
import re
from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import webtest
from webtest.response import TestResponse

from stackmgr.database import statements
from stackmgr.http.app import Application
from stackmgr.http.requests import compile_schema
from tests.support.greenlets import in_greenlets

_STACK = compile_schema("stack.json")
_PAGE = compile_schema("stack_page.json")
_ERROR = compile_schema("error_object.json")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_HEADERS = {
    *("allow", "cache-control", "content-length", "content-type", "etag", "location", "retry-after"),
    *("www-authenticate", "x-request-id"),
}
STACKS = "/manager/stacks"
Headers = dict[str, str | None] | None
# The statements of Citus: the key of each request is verified before.
_VERIFY_NO_KEY = statements.load_variant("citus").keys() if os.environ.get("STACKMGR_TEST_CITUS") else set()
# Section 7 of the specification.
STATUS = {
    "invalid_request": 400, "unauthorized": 401, "not_found": 404, "conflict": 409,
    "payload_too_large": 413, "rate_limited": 429, "internal_error": 500, "service_unavailable": 503,
}  # fmt: skip


class ContractClient:
    """One manager's requests, each response to which is checked; a subclass sends them."""

    def __init__(self, key: str | None) -> None:
        self.key = key

    def send(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> TestResponse:
        raise NotImplementedError

    def request(self, method: str, path: str, body: Any = None, headers: Headers = None) -> TestResponse:
        """Send a request and check the response.  A header given as None is left out."""
        given = {"Authorization": f"Bearer {self.key}"}
        if body is not None:
            given["Content-Type"] = "application/json"
        wanted = {name: value for name, value in (given | (headers or {})).items() if value is not None}
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        response = self.send(method, path, data, wanted)
        check_response(method, path, response.status_int, response.headers, response.body)
        return response

    def create(self, document: Any, key: str | None = None, headers: Headers = None) -> TestResponse:
        given = {"Idempotency-Key": key or str(uuid4()), **(headers or {})}
        return self.request("POST", STACKS, document, given)

    def update(self, stack_id: str, document: Any, headers: Headers = None) -> TestResponse:
        return self.request("PATCH", f"{STACKS}/{stack_id}", document, headers)

    def get(self, stack_id: str, headers: Headers = None) -> TestResponse:
        return self.request("GET", f"{STACKS}/{stack_id}", headers=headers)

    def page(self, query: str = "") -> TestResponse:
        return self.request("GET", f"{STACKS}?{query}" if query else STACKS)

    def pages(self, first: int, later: int) -> Iterator[list[str]]:
        """Yield the ids of each page; the arguments are the limits of the first one and of the later ones."""
        page = self.page(f"limit={first}").json
        yield [item["id"] for item in page["items"]]
        while page["next_cursor"] is not None:
            page = self.page(f"limit={later}&cursor={page['next_cursor']}").json
            yield [item["id"] for item in page["items"]]

    def walk(self, limit: int) -> list[str]:
        return [stack_id for page in self.pages(limit, limit) for stack_id in page]


class Client(ContractClient):
    """One manager's view of the application; `statements` names those that the last request has run."""

    def __init__(self, app: Application, key: str | None, external_id: str, run: list[str]) -> None:
        super().__init__(key)
        self._application = app
        self.change_worker()
        self.external_id = external_id
        self._run = run
        self.statements: list[str] = []

    def change_worker(self) -> None:
        """Send the next requests to another worker, which remembers no key."""
        self._app = webtest.TestApp(in_greenlets(self._application))

    def send(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> TestResponse:
        self._run.clear()
        self._app.extra_environ = {"RAW_URI": path}
        response = self._app.request(
            path, method=method, body=body or b"", headers=headers, expect_errors=True
        )
        self.statements = list(self._run)
        if self.statements[:1] == ["api_key_verify"] and _VERIFY_NO_KEY & {*self.statements[1:2]}:
            del self.statements[0]
        # A server adds others.
        assert {name.lower() for name in response.headers} <= _HEADERS
        assert response.headers["Content-Length"] == str(len(response.body)) or method == "HEAD"
        if not headers.get("X-Request-Id", "").strip(" \t"):
            assert str(UUID(response.headers["X-Request-Id"])) == response.headers["X-Request-Id"]
        return response


def check_response(method: str, path: str, status: int, headers: Any, body: bytes) -> None:
    """Assert what holds for every response; a message begins with the section of the specification."""
    assert headers["X-Request-Id"], f"4.5: no X-Request-Id on a response with status {status}"
    assert headers["Cache-Control"] == "no-store", "4.5: Cache-Control is not no-store"
    assert headers["Content-Type"] == "application/json", f"1: {status} with {headers['Content-Type']}"
    lowered = {name.lower() for name in headers}
    assert not any(name.startswith("access-control-") for name in lowered), "5.8: a CORS header"
    assert "set-cookie" not in lowered, "5.8: a cookie"
    if method == "HEAD":
        assert body == b""
        return
    document = json.loads(body)
    # A response that fails once its stack is saved keeps the fields of the stack.
    assert ("ETag" in headers) == ("current_revision_id" in document), "4.5: ETag"
    assert ("Location" in headers) == (status == 201), "4.5: Location"
    assert ("WWW-Authenticate" in headers) == (status == 401), "5.5: WWW-Authenticate"
    assert ("Allow" in headers) == (status == 405), "1: Allow"
    assert "Retry-After" not in headers or status in {429, 503}, "8: Retry-After"
    if status >= 400:
        _ERROR(document)
        code = document["code"]
        suits = STATUS[code] == status or (status, code) == (405, "invalid_request")
        assert suits, f"7: {status} with {code!r}"
        assert document["request_id"] == headers["X-Request-Id"], "2.8: request_id is not X-Request-Id"
    elif path.partition("?")[0] == STACKS and method == "GET":
        _PAGE(document)
        for item in document["items"]:
            _check_stack(item)
    else:
        _STACK(document)
        _check_stack(document)
        tag = f'"{document["current_revision_id"]}"'
        assert headers["ETag"] == tag, f"4.5: the ETag is {headers['ETag']}, not the quoted revision id"


def _check_stack(stack: dict[str, Any]) -> None:
    assert _UUID.fullmatch(stack["id"]), "2.1: id is not a lowercase UUID"
    assert _UUID.fullmatch(stack["current_revision_id"]), "2.1: current_revision_id is not a lowercase UUID"
    addresses = [item["token_address"] for item in stack["allocation"]]
    assert addresses == sorted(set(addresses)), "2.1: the allocation is not sorted, or repeats an address"
    assert sum(item["weight_bps"] for item in stack["allocation"]) == 10000, "2.1: the weights' total"
