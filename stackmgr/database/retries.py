"""What to do after a statement has failed: one table, by what the server called it, never by its words.

The status of the answer follows from where the failure happened, not from this table: while a key is being
verified nothing has changed yet and the answer is 503, afterwards it is 500.  The one exception is
PROGRAM_LIMIT_EXCEEDED at the receipt of a creation: there the key is too long, which is the caller's doing.
"""

from enum import Enum

from stackmgr.errors import DatabaseError

PROGRAM_LIMIT_EXCEEDED = "54000"

# Reasons of a DatabaseError that has no SQLSTATE, because no server gave an answer.
CONNECTION_LOST = "connection_lost"
DEADLINE = "deadline"
NO_CONNECTION = "no_connection"


class RetryAction(Enum):
    """What helps after a failure."""

    FAIL = "the statement changed nothing, and would fail again"
    RETRY = "it was rolled back for the sake of others, and may succeed a moment later"
    RECONNECT_ALL = "it was refused because of what the connections are: new ones will do better"
    RETRY_IF_READ = "the connection is gone and the outcome with it: only what writes nothing may run again"
    CLOSE = "time is up: the connection is closed, because an answer may still come"


_ACTIONS = {
    "40001": RetryAction.RETRY,  # serialization_failure
    "40P01": RetryAction.RETRY,  # deadlock_detected
    "0A000": RetryAction.RECONNECT_ALL,  # a prepared statement whose columns a migration has changed
    "25006": RetryAction.RECONNECT_ALL,  # the server has become a standby, or was made read-only
    "26000": RetryAction.RECONNECT_ALL,  # the server or a pooler has forgotten the prepared statement
    "08": RetryAction.RETRY_IF_READ,  # connection exceptions
    "57P": RetryAction.RETRY_IF_READ,  # shut down, crashed, starting up, idle for too long, database dropped
    # A warning at a write: the wait for the synchronous standby was cancelled, so that what is committed
    # here may be lost with this server.
    "01": RetryAction.RETRY_IF_READ,
    CONNECTION_LOST: RetryAction.RETRY_IF_READ,
    DEADLINE: RetryAction.CLOSE,
}

_ATTEMPTS = {RetryAction.RETRY: 4, RetryAction.RECONNECT_ALL: 2, RetryAction.RETRY_IF_READ: 2}


def retry_action(failure: DatabaseError) -> RetryAction:
    """Return what helps after *failure*; the most specific line of the table counts."""
    if failure.sqlstate is None:
        return _ACTIONS.get(failure.reason, RetryAction.FAIL)
    prefixes = (failure.sqlstate[:length] for length in (5, 3, 2))
    return next((_ACTIONS[prefix] for prefix in prefixes if prefix in _ACTIONS), RetryAction.FAIL)


def should_retry(failure: DatabaseError, *, writes: bool, attempts: int) -> bool:
    """Whether a statement that failed so, after so many attempts, is to run again.

    Never where it could then happen twice, and no oftener than it can help.
    """
    helps = retry_action(failure)
    return attempts < _ATTEMPTS.get(helps, 1) and not (helps is RetryAction.RETRY_IF_READ and writes)


def must_close(failure: DatabaseError) -> bool:
    """Whether the connection is of no more use."""
    return retry_action(failure) in (RetryAction.RECONNECT_ALL, RetryAction.RETRY_IF_READ, RetryAction.CLOSE)
