"""The slugs that the log shows as `reason`: for operators, never part of a response.

`http/requests.py` composes those of the JSON Schemas.  `deploy/REASONS.md` says of each slug what
it means and what to do; a test compares both.
"""

from enum import StrEnum


class ReasonSlug(StrEnum):
    """Why a request ended in an error."""

    # The route, the path and the query string
    ROUTE = "route"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    STACK_ID = "stack_id"
    STACK = "stack"
    PERCENT_ENCODING = "percent_encoding"
    PARAMETER_UNKNOWN = "parameter_unknown"
    PARAMETER_REPEATED = "parameter_repeated"
    LIMIT_FORM = "limit_form"
    LIMIT_RANGE = "limit_range"
    CURSOR_FORM = "cursor_form"
    CURSOR_TIME = "cursor_time"
    FALCON = "falcon"
    # The transfer of a body
    MEDIA_TYPE = "media_type"
    CONTENT_ENCODING = "content_encoding"
    CONTENT_LENGTH = "content_length"
    BODY = "body"
    FRAMING = "framing"
    TRUNCATED = "truncated"
    REQUEST_TIMED_OUT = "request_timed_out"
    # JSON
    NOT_UTF8 = "not_utf8"
    NOT_JSON = "not_json"
    REPEATED_MEMBER = "repeated_member"
    BODY_STRUCTURE = "body_structure"
    # The rules that a JSON Schema cannot state
    NAME_BLANK = "name_blank"
    NAME_NUL = "name_nul"
    NAME_SURROGATE = "name_surrogate"
    TOKEN_NOT_WHITELISTED = "token_not_whitelisted"
    TOKEN_CHECKSUM = "token_checksum"
    TOKEN_REPEATED = "token_repeated"
    WEIGHTS_TOTAL = "weights_total"
    # Idempotency keys
    IDEMPOTENCY_KEY_BLANK = "idempotency_key_blank"
    IDEMPOTENCY_KEY_TOO_LONG = "idempotency_key_too_long"
    IDEMPOTENCY_KEY_REUSED = "idempotency_key_reused"
    # Credentials
    AUTHORIZATION_HEADER = "authorization_header"
    KEY_MALFORMED = "key_malformed"
    KEY_TOO_LONG = "key_too_long"
    KEY_UNKNOWN = "key_unknown"
    KEY_REVOKED = "key_revoked"
    KEY_EXPIRED = "key_expired"
    KEY_DISABLED = "key_disabled"
    KEY_FORBIDDEN = "key_forbidden"
    KEY_WITHOUT_PERMISSION = "key_without_permission"
    KEY_REFUSED = "key_refused"
    IDENTITY_MISSING = "identity_missing"
    IDENTITY_ID_MISSING = "identity_id_missing"
    EXTERNAL_ID_NOT_CANONICAL = "external_id_not_canonical"
    QUOTA = "quota"
    KEY_LIMITED = "key_limited"
    KEY_USAGE_EXCEEDED = "key_usage_exceeded"
    # Verification
    DATABASE = "database"
    VERIFIER_CIRCUIT_OPEN = "verifier_circuit_open"
    VERIFIER_KEY_CIRCUIT_OPEN = "verifier_key_circuit_open"
    VERIFIER_DNS = "verifier_dns"
    VERIFIER_CONNECT = "verifier_connect"
    VERIFIER_TLS = "verifier_tls"
    VERIFIER_TIMEOUT = "verifier_timeout"
    VERIFIER_HTTP_STATUS = "verifier_http_STATUS"  # logged with the number of the status
    VERIFIER_RESPONSE_BROKEN = "verifier_response_broken"
    VERIFIER_RESPONSE_TOO_LONG = "verifier_response_too_long"
    VERIFIER_RESPONSE_NOT_JSON = "verifier_response_not_json"
    VERIFIER_RESPONSE_NOT_AN_OBJECT = "verifier_response_not_an_object"
    VERIFIER_RESPONSE_WITHOUT_DATA = "verifier_response_without_data"
    VERIFIER_RESPONSE_CONTRADICTORY = "verifier_response_contradictory"
    # What a worker admits
    QUEUE_TIMEOUT = "queue_timeout"
    # The database, after the verification; also among the causes of another error
    MANAGER_BINDING = "manager_binding"
    NO_CONNECTION = "no_connection"
    CONNECTION_LOST = "connection_lost"
    DEADLINE = "deadline"
    REJECTED = "rejected"
    UNSUPPORTED = "unsupported"
    UNCONFIRMED = "unconfirmed"
    RECEIPT_VANISHED = "receipt_vanished"
    # A bug of the service
    UNEXPECTED = "unexpected"
