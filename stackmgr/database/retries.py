"""Action after a failed statement: one table by SQLSTATE, never by the server's message.

The status of the response depends on where the failure happened: 503 while the key is not verified
and nothing can have changed, otherwise 500.  PROGRAM_LIMIT_EXCEEDED is 400 in a create whose
Idempotency-Key is longer than the receipt index can hold.
"""

from enum import Enum

from stackmgr.errors import DatabaseError
from stackmgr.reasons import ReasonSlug

PROGRAM_LIMIT_EXCEEDED = "54000"
# Handled by the connection itself: a pooler has moved it to another server session.
INVALID_STATEMENT_NAME = "26000"
DUPLICATE_PREPARED_STATEMENT = "42P05"
FEATURE_NOT_SUPPORTED = "0A000"
LOCK_NOT_AVAILABLE = "55P03"


class RetryAction(Enum):
    """The action after a failure."""

    FAIL = "the statement changed nothing and would fail again"
    RETRY = "it was rolled back because of a concurrent transaction: run it again"
    RECONNECT_ALL = "it was rejected because of the state of the connections: replace them all, run it again"
    RETRY_IF_READ = "the connection and the outcome are lost: run it again only if it writes nothing"
    CLOSE = "the deadline has passed: close the connection, because a result may still arrive"


_ACTIONS = {
    "40001": RetryAction.RETRY,  # serialization_failure
    "40P01": RetryAction.RETRY,  # deadlock_detected
    INVALID_STATEMENT_NAME: RetryAction.RETRY,  # a pooler has led to a server session without the statement
    # A prepared statement whose result type a migration has changed; but see UNSUPPORTED.
    FEATURE_NOT_SUPPORTED: RetryAction.RECONNECT_ALL,
    "25006": RetryAction.RECONNECT_ALL,  # the server has become a standby, or was made read-only
    "08": RetryAction.RETRY_IF_READ,  # connection exceptions
    "57P": RetryAction.RETRY_IF_READ,  # shut down, crashed, starting up, idle for too long, database dropped
    ReasonSlug.CONNECTION_LOST: RetryAction.RETRY_IF_READ,
    ReasonSlug.UNCONFIRMED: RetryAction.RETRY_IF_READ,
    ReasonSlug.DEADLINE: RetryAction.CLOSE,
    # FEATURE_NOT_SUPPORTED for a statement prepared just now: another connection would not help.
    ReasonSlug.UNSUPPORTED: RetryAction.FAIL,
}

_ATTEMPTS = {RetryAction.RETRY: 4, RetryAction.RECONNECT_ALL: 2, RetryAction.RETRY_IF_READ: 2}


def retry_action(failure: DatabaseError) -> RetryAction:
    """Return what to do after *failure*, by the longest prefix of its SQLSTATE in the table."""
    if failure.sqlstate is None or failure.reason in _ACTIONS:
        return _ACTIONS.get(failure.reason, RetryAction.FAIL)
    prefixes = (failure.sqlstate[:length] for length in (5, 3, 2))
    return next((_ACTIONS[prefix] for prefix in prefixes if prefix in _ACTIONS), RetryAction.FAIL)


def should_retry(failure: DatabaseError, *, writes: bool, attempts: int) -> bool:
    """Whether to run the failed statement again after *attempts*; never a write in doubt."""
    action = retry_action(failure)
    if action is RetryAction.RETRY_IF_READ and writes:
        return False
    return attempts < _ATTEMPTS.get(action, 1)


def must_close(failure: DatabaseError) -> bool:
    """Whether the connection cannot be used again."""
    return retry_action(failure) in (RetryAction.RECONNECT_ALL, RetryAction.RETRY_IF_READ, RetryAction.CLOSE)
