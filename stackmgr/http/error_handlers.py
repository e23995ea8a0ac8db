"""Turn exceptions into Error objects: the one place where the unexpected becomes a 500."""

import logging
from typing import Any

import falcon

from stackmgr import errors
from stackmgr.errors import ServiceError
from stackmgr.http import middleware
from stackmgr.monitoring import logs
from stackmgr.reasons import ReasonSlug

# Overload has its request line; the circuit breaker and managers.py log the other two.
_LOGGED_ELSEWHERE = (errors.Overloaded, errors.CircuitOpen, errors.BindingConflict)

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
    resp.data = errors.error_object(error.code, error.message, request_id)


def _log_failure(req: falcon.Request, ex: Exception) -> None:
    # Not as exc_info: a formatter would print the exception's text, which may quote a request.
    fields = {"request_id": getattr(req.context, "request_id", None), "method": req.method}
    _log.error("a request failed", extra={"fields": fields | logs.description(ex)})


def _as_service_error(req: falcon.Request, ex: Exception) -> ServiceError:
    if isinstance(ex, ServiceError):
        return ex
    if isinstance(ex, falcon.HTTPError):  # an unknown route, or a header field that Falcon cannot parse
        unknown = ex.status_code == 404
        return (
            errors.NotFound(ReasonSlug.ROUTE, req.path)
            if unknown
            else errors.InvalidRequest(ReasonSlug.FALCON)
        )
    return ServiceError(ReasonSlug.UNEXPECTED)


def _handle(req: falcon.Request, resp: falcon.Response, ex: Exception, params: dict[str, Any]) -> None:
    error = _as_service_error(req, ex)
    if error.status >= 500 and not isinstance(error, _LOGGED_ELSEWHERE):
        _log_failure(req, ex)
    _respond(req, resp, error)


def install(app: falcon.App[Any, Any]) -> None:
    """Make the application return every exception as an Error object."""
    app.add_error_handler(Exception, _handle)
    app.add_error_handler(falcon.HTTPError, _handle)  # for which Falcon has one of its own
