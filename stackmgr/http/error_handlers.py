"""Turn exceptions into Error objects: the one place where the unexpected becomes a 500."""

import logging
from typing import Any

import falcon

from stackmgr.errors import (
    BindingConflict,
    CircuitOpen,
    InvalidRequest,
    NotFound,
    Overloaded,
    ServiceError,
    error_object,
)
from stackmgr.http import middleware
from stackmgr.monitoring import logs
from stackmgr.reasons import ReasonSlug

_log = logging.getLogger("stackmgr")


def _respond(req: falcon.Request, resp: falcon.Response, error: ServiceError) -> None:
    request_id = getattr(req.context, "request_id", None) or middleware.assign_request_id(req, resp)
    # Tracebacks hold this request: the cycle would keep a body of 256 KB until a collection.
    error.__traceback__ = error.__cause__ = error.__context__ = None
    req.context.error = error
    resp.status = falcon.code_to_http_status(error.status)
    for name, value in error.headers.items():
        resp.set_header(name, value)
    resp.content_type = falcon.MEDIA_JSON
    resp.data = error_object(error.code, error.message, request_id)


def _log_failure(req: falcon.Request, ex: Exception) -> None:
    # Not as exc_info: a formatter would print the exception's text, which may quote a request.
    fields = {"request_id": getattr(req.context, "request_id", None), "method": req.method}
    _log.error("a request failed", extra={"fields": fields | logs.description(ex)})


def on_service_error(
    req: falcon.Request, resp: falcon.Response, ex: ServiceError, params: dict[str, Any]
) -> None:
    """Respond with one of the service's errors."""
    # Overload has its request line; the circuit breaker and managers.py log the other two.
    if ex.status >= 500 and not isinstance(ex, Overloaded | CircuitOpen | BindingConflict):
        _log_failure(req, ex)
    _respond(req, resp, ex)


def on_falcon_error(
    req: falcon.Request, resp: falcon.Response, ex: falcon.HTTPError, params: dict[str, Any]
) -> None:
    """Respond to an error of Falcon's: an unknown route, or a header field it cannot parse."""
    unknown = ex.status_code == 404
    _respond(
        req, resp, NotFound(ReasonSlug.ROUTE, req.path) if unknown else InvalidRequest(ReasonSlug.FALCON)
    )


def on_unexpected(req: falcon.Request, resp: falcon.Response, ex: Exception, params: dict[str, Any]) -> None:
    """Respond to a bug of the service with 500."""
    _log_failure(req, ex)
    _respond(req, resp, ServiceError(ReasonSlug.UNEXPECTED))


def install(app: falcon.App[Any, Any]) -> None:
    """Make the application return every exception as an Error object."""
    app.add_error_handler(Exception, on_unexpected)
    app.add_error_handler(falcon.HTTPError, on_falcon_error)
    app.add_error_handler(ServiceError, on_service_error)
