"""The service's errors, and the Error object in which every one of them is returned.

Each class is one cause.  It owns the response: `status`, the specification's `code`, the public
`message`, and its header fields.  `reason` is for the operator's log: a slug, never request data.
"""

import json
from collections.abc import Mapping
from types import MappingProxyType

from stackmgr.limits import BODY_LIMIT_BYTES
from stackmgr.reasons import ReasonSlug

LONGEST_RETRY_AFTER_SECONDS = 86_400  # of any verifier


class ServiceError(Exception):
    """A request that ends in an Error object."""

    status = 500
    code = "internal_error"
    message = "An unexpected error occurred."
    headers: Mapping[str, str] = MappingProxyType({})
    # For the log: a verifier's ids of the key that it rejects, and of its own request.
    key_id: str | None = None
    verifier_request_id: str | None = None

    def __init__(self, reason: ReasonSlug | str | None = None, at: str | None = None) -> None:
        self.reason = str(reason or "")
        # For the log of `stackmgr dev`: where and how the request breaks a rule.  It may quote it.
        self.at = at
        super().__init__(self.reason)


class InvalidRequest(ServiceError):
    """The request is not valid HTTP, or breaks a rule that has a class of its own below."""

    status = 400
    code = "invalid_request"
    message = "The request is not valid HTTP."


class IncompleteRequest(InvalidRequest):
    message = "The request ended early."


class SmallChunks(InvalidRequest):
    message = "The chunks of the request body are too small."


class InvalidBody(InvalidRequest):
    message = "The request body is not a complete JSON document sent as application/json."


class InvalidConfiguration(InvalidRequest):
    message = "The stack configuration is invalid."


class InvalidIdempotencyKey(InvalidRequest):
    message = "The Idempotency-Key header is missing, blank or too long."


class InvalidPagination(InvalidRequest):
    message = "The pagination parameters are invalid."


class InvalidStackId(InvalidRequest):
    message = "The stack id is not a valid UUID."


class MethodNotAllowed(InvalidRequest):
    """The resource does not support the method.  *allowed* is the value of `Allow`."""

    status = 405
    message = "The method is not allowed for this resource."

    def __init__(self, allowed: str) -> None:
        super().__init__(ReasonSlug.METHOD_NOT_ALLOWED)
        self.headers = {"Allow": allowed}


class Unauthorized(ServiceError):
    """The credential is missing, invalid, or verified without the required identity."""

    status = 401
    code = "unauthorized"
    message = "The API key is missing or invalid."
    headers = MappingProxyType({"WWW-Authenticate": "Bearer"})


class NotFound(ServiceError):
    """The route or the stack does not exist, or the stack belongs to another manager."""

    status = 404
    code = "not_found"
    message = "The resource was not found."


class Conflict(ServiceError):
    status = 409
    code = "conflict"
    message = "The Idempotency-Key was already used with different input."


class PayloadTooLarge(ServiceError):
    status = 413
    code = "payload_too_large"
    message = f"The request body exceeds {BODY_LIMIT_BYTES} bytes."


class VerificationError(ServiceError):
    """The key was neither accepted nor rejected; *retry_after* is in seconds, None if unknown."""

    def __init__(self, reason: ReasonSlug | str | None = None, retry_after: int | None = None) -> None:
        super().__init__(reason)
        self.retry_after = retry_after
        if retry_after is not None:
            self.retry_after = min(retry_after, LONGEST_RETRY_AFTER_SECONDS)
            self.headers = {"Retry-After": str(self.retry_after)}


class RateLimited(VerificationError):
    status = 429
    code = "rate_limited"
    message = "The API key has exceeded its rate limit."


class TooManyRequests(RateLimited):
    """A rate limit is exceeded that is not of the key alone."""

    message = "Too many requests."


class ServiceUnavailable(VerificationError):
    """The key could not be verified: access is not granted and nothing changes."""

    status = 503
    code = "service_unavailable"
    message = "The service is temporarily unavailable. Nothing was changed."


class RequestTimedOut(ServiceUnavailable):
    """The request was not complete within the server's deadline: a client may send it again."""

    message = "The request did not arrive in time. Nothing was changed."

    def __init__(self) -> None:
        super().__init__(ReasonSlug.REQUEST_TIMED_OUT, retry_after=1)


class Overloaded(ServiceUnavailable):
    """The worker could not start the request in time: nothing changed."""


class CircuitOpen(ServiceUnavailable):
    """The verifier has stopped responding and was not called; the breaker logged it once."""


class BindingConflict(ServiceError):
    """The saved binding conflicts with the verified identity; only an operator can resolve it."""


class DatabaseError(ServiceError):
    """A statement failed, or there was no connection to run it on.

    `statement` is its name; `sqlstate` is the server's, or None where the server did not respond.
    """

    def __init__(
        self, reason: ReasonSlug, *, statement: str | None = None, sqlstate: str | None = None
    ) -> None:
        super().__init__(reason)
        self.statement = statement
        self.sqlstate = sqlstate


class CommandError(Exception):
    """A command cannot run; the message says why, without a secret.  No request raises it."""


def error_object(code: str, message: str, request_id: str) -> bytes:
    """Return the Error object as JSON, in ASCII: no byte of a client's id can break a line."""
    return json.dumps({"code": code, "message": message, "request_id": request_id}).encode("ascii")
