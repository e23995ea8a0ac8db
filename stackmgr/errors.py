"""The errors of the service's own language, and the one form in which all of them are answered.

Each class is one cause.  `code` is the specification's name for it, `STATUS` its HTTP status, `message`
the whole text a caller is told.  `reason` is for the operator's log: a short slug, never request data.
"""

import json

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


class ServiceError(Exception):
    """A request that ends in an Error object."""

    code = "internal_error"
    message = "An unexpected error occurred."

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class InvalidRequest(ServiceError):
    """The request breaks a rule that has no class of its own below."""

    code = "invalid_request"
    message = "The request is invalid."


class InvalidBody(InvalidRequest):
    """The body did not arrive whole, is not sent as JSON, or is not JSON."""

    message = "The request body is not a complete JSON document sent as application/json."


class InvalidConfiguration(InvalidRequest):
    """The body is JSON, but not a configuration a stack can have."""

    message = "The stack configuration is invalid."


class InvalidIdempotencyKey(InvalidRequest):
    """The Idempotency-Key is missing, blank, or longer than the receipt index can hold."""

    message = "The Idempotency-Key header is missing, blank or too long."


class InvalidPagination(InvalidRequest):
    """The query string of a list is not one that the service gave or described."""

    message = "The pagination parameters are invalid."


class InvalidStackId(InvalidRequest):
    """The id in the path is not a UUID in its hyphenated form."""

    message = "The stack id is not a valid UUID."


class MethodNotAllowed(InvalidRequest):
    """The path exists, the method does not: answered with 405 and the methods there are."""

    message = "The method is not allowed for this resource."

    def __init__(self, allowed: str) -> None:
        super().__init__("method_not_allowed")
        self.allowed = allowed


class Unauthorized(ServiceError):
    """No credential, or one that identifies nobody."""

    code = "unauthorized"
    message = "The API key is missing or invalid."


class NotFound(ServiceError):
    """No such route, no such stack, or another manager's stack."""

    code = "not_found"
    message = "The resource was not found."


class Conflict(ServiceError):
    """The Idempotency-Key was used before, with other input."""

    code = "conflict"
    message = "The Idempotency-Key was already used with different input."


class PayloadTooLarge(ServiceError):
    """The body exceeds 262144 bytes."""

    code = "payload_too_large"
    message = "The request body exceeds 262144 bytes."


class RateLimited(ServiceError):
    """The verification of the key is rate limited; `retry_after` is in whole seconds, where known."""

    code = "rate_limited"
    message = "The API key has exceeded its rate limit."

    def __init__(self, reason: str = "", retry_after: int | None = None) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


class ServiceUnavailable(ServiceError):
    """The key could not be verified: nothing was granted and nothing changed."""

    code = "service_unavailable"
    message = "The API key could not be verified at the moment."

    def __init__(self, reason: str = "", retry_after: int | None = None) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


class BindingConflict(ServiceError):
    """A saved manager binding disagrees with the verified identity: an operator must decide."""


class DatabaseError(ServiceError):
    """A statement failed.  `sqlstate` is the server's, or None where there was no answer from one."""

    def __init__(self, reason: str, sqlstate: str | None) -> None:
        super().__init__(reason)
        self.sqlstate = sqlstate


def error_object(code: str, message: str, request_id: str) -> bytes:
    """Return the Error object as JSON.  Plain ASCII, so that no byte of a caller's id can break a line."""
    return json.dumps({"code": code, "message": message, "request_id": request_id}).encode("ascii")
