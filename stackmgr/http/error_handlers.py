"""From an exception to an answer: the one place, and the one place where the unexpected becomes a 500."""

import logging
from typing import Any

import falcon

from stackmgr import errors, logs
from stackmgr.errors import ServiceError
from stackmgr.http import middleware

_log = logging.getLogger("stackmgr")


def _answer(req: falcon.Request, resp: falcon.Response, error: ServiceError) -> None:
    request_id = getattr(req.context, "request_id", None) or middleware.assign_request_id(req, resp)
    req.context.error = error
    resp.status = falcon.code_to_http_status(errors.STATUS[error.code])
    if isinstance(error, errors.MethodNotAllowed):
        resp.status = falcon.HTTP_405
        resp.set_header("Allow", error.allowed)
    if isinstance(error, errors.Unauthorized):
        resp.set_header("WWW-Authenticate", "Bearer")
    if isinstance(error, errors.RateLimited | errors.ServiceUnavailable) and error.retry_after is not None:
        resp.set_header("Retry-After", str(error.retry_after))
    resp.content_type = falcon.MEDIA_JSON
    resp.data = errors.error_object(error.code, error.message, request_id)


def _report(req: falcon.Request, ex: Exception) -> None:
    # Not as exc_info: a formatter that knew no better would print the exception's text.
    fields = {"request_id": getattr(req.context, "request_id", None), "method": req.method}
    _log.error("a request failed", extra={"fields": fields | logs.description(ex)})


def on_service_error(
    req: falcon.Request, resp: falcon.Response, ex: ServiceError, params: dict[str, Any]
) -> None:
    """Answer an error of the service's own."""
    if errors.STATUS[ex.code] >= 500:
        _report(req, ex)
    _answer(req, resp, ex)


def on_falcon_error(
    req: falcon.Request, resp: falcon.Response, ex: falcon.HTTPError, params: dict[str, Any]
) -> None:
    """Answer what Falcon itself found wrong: no such route, or a header it could not read."""
    _answer(req, resp, errors.NotFound("route") if ex.status_code == 404 else errors.InvalidRequest("falcon"))


def on_unexpected(req: falcon.Request, resp: falcon.Response, ex: Exception, params: dict[str, Any]) -> None:
    """Answer our own bug."""
    _report(req, ex)
    _answer(req, resp, ServiceError("unexpected"))


def install(app: falcon.App[Any, Any]) -> None:
    """Make the application answer every exception as an Error object."""
    app.add_error_handler(Exception, on_unexpected)
    app.add_error_handler(falcon.HTTPError, on_falcon_error)
    app.add_error_handler(ServiceError, on_service_error)
