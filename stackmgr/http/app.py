"""Create the WSGI application.  The one place where an unexpected exception becomes a 500."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import falcon

from stackmgr import errors
from stackmgr.access.verifiers import Verifier
from stackmgr.database.pool import Database
from stackmgr.errors import ServiceError
from stackmgr.http.middleware import Authentication, Observer, RequestContext, assign_request_id
from stackmgr.http.resources import COLLECTION_PATH, ITEM_PATH, StackCollection, StackItem
from stackmgr.monitoring import logs
from stackmgr.reasons import ReasonSlug

# Overload has its request line; the circuit breaker and managers.py log the other two.
_LOGGED_ELSEWHERE = (errors.Overloaded, errors.CircuitOpen, errors.BindingConflict)

_log = logging.getLogger("stackmgr")

Application = falcon.App[falcon.Request, falcon.Response]


class _App(Application):
    # Falcon reserves the method WEBSOCKET for ASGI, with 400.  Here it gets 405, as the others.
    _META_METHODS = frozenset()


def _as_service_error(req: falcon.Request, ex: Exception) -> ServiceError:
    if isinstance(ex, ServiceError):
        return ex
    if not isinstance(ex, falcon.HTTPError):
        return ServiceError(ReasonSlug.UNEXPECTED)
    if ex.status_code == 404:
        return errors.NotFound(ReasonSlug.ROUTE, req.path)
    return errors.InvalidRequest(ReasonSlug.FALCON)  # a header field that Falcon cannot parse


def _respond(req: falcon.Request, resp: falcon.Response, error: ServiceError) -> None:
    request_id = getattr(req.context, "request_id", None) or assign_request_id(req, resp)
    # Tracebacks hold this request: the cycle would keep a body of 256 KB until a collection.
    error.__traceback__ = error.__cause__ = error.__context__ = None
    req.context.error = error
    resp.status = falcon.code_to_http_status(error.status)
    for name, value in error.headers.items():
        resp.set_header(name, value)
    resp.data = errors.error_object(error.code, error.message, request_id)


def _handle(req: falcon.Request, resp: falcon.Response, ex: Exception, params: dict[str, Any]) -> None:
    error = _as_service_error(req, ex)
    if error.status >= 500 and not isinstance(error, _LOGGED_ELSEWHERE):
        # Not as exc_info: a formatter would print the exception's text, which may quote a request.
        fields = {"request_id": getattr(req.context, "request_id", None), "method": req.method}
        _log.error("a request failed", extra={"fields": fields | logs.description(ex)})
    _respond(req, resp, error)


def return_error_objects(app: falcon.App[Any, Any]) -> None:
    """Let the application return every exception as an Error object."""
    app.add_error_handler(Exception, _handle)
    app.add_error_handler(falcon.HTTPError, _handle)  # for which Falcon has one of its own


def create_app(
    *,
    database: Database,
    verifier: Verifier,
    spellings: Mapping[str, str],
    observers: Sequence[Observer] = (),
    quotes_requests: bool = False,
) -> Application:
    """Return the WSGI application.

    *spellings* maps each accepted spelling of a whitelisted token address to its lowercase form.
    *observers* get the fields of each request, which may quote it only with *quotes_requests*.
    """
    context = RequestContext(observers, quotes_requests=quotes_requests)
    app = _App(middleware=(context, Authentication(database, verifier)))
    return_error_objects(app)
    app.add_route(COLLECTION_PATH, StackCollection(spellings))
    app.add_route(ITEM_PATH, StackItem(spellings))
    return app
