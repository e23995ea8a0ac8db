"""Run around every request: assign its id, check its route, authenticate it, log it."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import uuid4

import falcon

from stackmgr.access.credentials import Credential
from stackmgr.access.verifiers import Verifier
from stackmgr.admission import ADMISSION, UNLIMITED
from stackmgr.database.pool import Database
from stackmgr.errors import MethodNotAllowed, NotFound, Overloaded, ServiceError
from stackmgr.http import requests
from stackmgr.monitoring.logs import CLIENT_CHARACTERS, RateLimitFilter, description
from stackmgr.reasons import ReasonSlug

Observer = Callable[[Mapping[str, Any]], None]

_log = logging.getLogger("stackmgr.observers")
_log.addFilter(RateLimitFilter())


def assign_request_id(req: falcon.Request, resp: falcon.Response) -> str:
    """Return the request's id (the client's, or a new UUID) and set it on the response."""
    request_id: str = req.env.get("HTTP_X_REQUEST_ID", "").strip(" \t") or str(uuid4())
    req.context.request_id = request_id
    req.context.error = None
    resp.set_header("X-Request-Id", request_id)
    resp.set_header("Cache-Control", "no-store")
    return request_id


class RequestContext:
    """Set `X-Request-Id` and `Cache-Control` on every response, and log every request.

    *observers* receive the fields of one log line per request; without one none are collected.  The
    field `at` may quote the request, so only *quotes_requests* adds it.
    """

    def __init__(self, observers: Sequence[Observer], *, quotes_requests: bool) -> None:
        self._observers = observers
        self._quotes_requests = quotes_requests
        self._failures = 0  # of observers

    def process_request(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Run before routing.  Raises Overloaded for a request that the server rejects."""
        assign_request_id(req, resp)
        req.path = requests.routed_path(req)
        req.context.started = time.perf_counter()
        req.context.trace = requests.parse_trace_context(req)
        if seconds := req.env.get(ADMISSION, UNLIMITED).retry_after:
            raise Overloaded(ReasonSlug.QUEUE_TIMEOUT, seconds)

    def process_response(
        self, req: falcon.Request, resp: falcon.Response, resource: Any, req_succeeded: bool
    ) -> None:
        if not self._observers:
            return
        context, error = req.context, req.context.error
        credential = getattr(context, "credential", None)
        identity = credential and credential.identity
        fields = {
            "request_id": context.request_id[:CLIENT_CHARACTERS],
            "manager_id": identity and identity.manager_id,
            "key_id": identity.key_id if identity else error and error.key_id,
            "stack_id": getattr(context, "stack_id", None),
            "method": req.method[:CLIENT_CHARACTERS],
            "route": req.uri_template,
            "status": resp.status_code,
            "code": error and error.code,
            "reason": error and error.reason,
            "verifier": credential and credential.outcome,
            "queued_ms": round(req.env.get(ADMISSION, UNLIMITED).queued_seconds * 1000, 3),
            "duration_ms": round((time.perf_counter() - context.started) * 1000, 3),
        }
        if credential and credential.verifier_seconds:
            fields["verifier_ms"] = round(credential.verifier_seconds * 1000, 3)
        if self._quotes_requests and error and error.at:
            fields["at"] = error.at[:CLIENT_CHARACTERS]
        if error and error.verifier_request_id:
            fields["verifier_request_id"] = error.verifier_request_id
        if context.trace is not None:
            fields["trace_id"] = context.trace["traceparent"].split("-")[1]
        for observe in self._observers:
            try:
                observe(fields)
            except Exception as ex:  # noqa: BLE001 - the response is complete and may say that a write was made
                self._failures += 1
                failure = {"failures": self._failures} | description(ex)
                _log.warning("a request could not be observed", extra={"fields": failure})


class Authentication:
    """Authenticate every routed request and plan its statement, before its responder runs."""

    def __init__(self, database: Database, verifier: Verifier) -> None:
        self._database = database
        self._verifier = verifier

    def process_resource(
        self, req: falcon.Request, resp: falcon.Response, resource: Any, params: dict[str, Any]
    ) -> None:
        # Falcon routes these too, but they are neither the collection nor a stack.
        if req.path.endswith("/") or "//" in req.path:
            req.uri_template = None
            raise NotFound(ReasonSlug.ROUTE, req.path)
        if req.method not in resource.methods:
            raise MethodNotAllowed(", ".join(resource.methods))
        key = requests.parse_credential(req.env.get("HTTP_AUTHORIZATION", ""))
        session = req.context.session = self._database.session()
        admission = req.env.get(ADMISSION, UNLIMITED)
        credential = Credential(key, session, self._verifier, admission, req.context.trace)
        req.context.credential = credential
        credential.begin()
        try:
            req.context.operation = resource.operation(req, params)
        except ServiceError:
            credential.confirm()  # a rejected key comes first
            raise
