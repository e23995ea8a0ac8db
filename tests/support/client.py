"""A client that checks, in every response it gets, what the contract promises of every response."""

import json
import re
from typing import Any
from uuid import uuid4

import webtest
from webtest.response import TestResponse

from stackmgr.http.app import Application
from stackmgr.http.requests import compile_schema
from tests.support.greenlets import in_greenlets

_STACK = compile_schema("stack.json")
_PAGE = compile_schema("stack_page.json")
_ERROR = compile_schema("error_object.json")
_ETAG = re.compile(r'"[0-9a-f-]{36}"')
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

STACKS = "/manager/stacks"

# Section 7 of the specification.
STATUS = {
    "invalid_request": 400,
    "unauthorized": 401,
    "not_found": 404,
    "conflict": 409,
    "payload_too_large": 413,
    "rate_limited": 429,
    "internal_error": 500,
    "service_unavailable": 503,
}


class Client:
    """One manager's view of the application.

    `statements` holds, after each call, the names of the statements that call has run.
    """

    def __init__(
        self, app: Application, key: str | None, external_id: str, statements_run: list[str]
    ) -> None:
        self._application = app
        self.change_worker()
        self.key = key
        self.external_id = external_id
        self._run = statements_run
        self.statements: list[str] = []

    def change_worker(self) -> None:
        """Send the next requests to another worker, which knows no key."""
        self._app = webtest.TestApp(in_greenlets(self._application))

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> TestResponse:
        """Send a request exactly as given (but for this manager's Authorization) and check the response.

        A header given as None is left out.
        """
        defaults = {"Authorization": f"Bearer {self.key}"}
        if body is not None:
            defaults["Content-Type"] = "application/json"
        wanted = {name: value for name, value in (defaults | (headers or {})).items() if value is not None}
        self._run.clear()
        response = self._app.request(
            path, method=method, body=body or b"", headers=wanted, expect_errors=True
        )
        self.statements = list(self._run)
        check_response(method, path, response.status_int, response.headers, response.body)
        return response

    def create(
        self, document: Any, key: str | None = None, headers: dict[str, str] | None = None
    ) -> TestResponse:
        """POST *document* (bytes go out as they are) under *key*, or under a new one."""
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        return self.request("POST", STACKS, body, {"Idempotency-Key": key or str(uuid4())} | (headers or {}))

    def update(self, stack_id: str, document: Any, headers: dict[str, str] | None = None) -> TestResponse:
        """PATCH a stack with *document* (bytes go out as they are)."""
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        return self.request("PATCH", f"{STACKS}/{stack_id}", body, headers)

    def get(self, stack_id: str, headers: dict[str, str] | None = None) -> TestResponse:
        return self.request("GET", f"{STACKS}/{stack_id}", headers=headers)

    def page(self, query: str = "") -> TestResponse:
        return self.request("GET", f"{STACKS}?{query}" if query else STACKS)

    def walk(self, limit: int) -> list[str]:
        """Return the ids of all stacks, page by page."""
        ids: list[str] = []
        query = f"limit={limit}"
        while True:
            page = self.page(query).json
            ids += [item["id"] for item in page["items"]]
            if page["next_cursor"] is None:
                return ids
            query = f"limit={limit}&cursor={page['next_cursor']}"


def check_response(method: str, path: str, status: int, headers: Any, body: bytes) -> None:
    """Assert what holds for every response of the service, whatever the request was."""
    assert headers["X-Request-Id"]
    assert headers["Cache-Control"] == "no-store"
    assert headers["Content-Type"] == "application/json"
    lowered = {name.lower() for name in headers}
    assert not any(name.startswith("access-control-") for name in lowered)
    assert not lowered & {"set-cookie", "vary"}
    if method == "HEAD":
        assert body == b""
        return
    document = json.loads(body)
    if status >= 400:
        _ERROR(document)
        assert status == 405 or STATUS[document["code"]] == status
        assert document["request_id"] == headers["X-Request-Id"]
        assert ("WWW-Authenticate" in headers) == (status == 401)
        assert ("Allow" in headers) == (status == 405)
    elif path.partition("?")[0] == STACKS and method == "GET":
        _PAGE(document)
        for item in document["items"]:
            _check_stack(item)
    else:
        _STACK(document)
        _check_stack(document)
        assert _ETAG.fullmatch(headers["ETag"])
        assert headers["ETag"] == f'"{document["current_revision_id"]}"'
        assert ("Location" in headers) == (status == 201)


def _check_stack(stack: dict[str, Any]) -> None:
    assert _UUID.fullmatch(stack["id"])
    assert _UUID.fullmatch(stack["current_revision_id"])
    addresses = [item["token_address"] for item in stack["allocation"]]
    assert addresses == sorted(set(addresses))
    assert sum(item["weight_bps"] for item in stack["allocation"]) == 10000
