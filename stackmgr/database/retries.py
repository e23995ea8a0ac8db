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


class Remedy(Enum):
    """What helps after a failure."""

    NONE = "the statement changed nothing, and would fail again"
    AGAIN = "it was rolled back for the sake of others, and may succeed a moment later"
    ELSEWHERE = "it was refused because of what the connections are: new ones will do better"
    FRESH = "the connection is gone and the outcome with it: only what writes nothing may run again"
    DISCARD = "time is up: the connection is closed, because an answer may still come"


_REMEDIES = {
    "40001": Remedy.AGAIN,  # serialization_failure
    "40P01": Remedy.AGAIN,  # deadlock_detected
    "0A000": Remedy.ELSEWHERE,  # a prepared statement whose columns a migration has changed
    "25006": Remedy.ELSEWHERE,  # the server has become a standby, or was made read-only
    "26000": Remedy.ELSEWHERE,  # the server, or a pooler before it, has forgotten the prepared statement
    "08": Remedy.FRESH,  # connection exceptions
    "57P": Remedy.FRESH,  # shut down, crashed, starting up, idle for too long, database dropped
    # A warning at a write: the wait for the synchronous standby was cancelled, so that what is committed
    # here may be lost with this server.
    "01": Remedy.FRESH,
    CONNECTION_LOST: Remedy.FRESH,
    DEADLINE: Remedy.DISCARD,
}

_ATTEMPTS = {Remedy.AGAIN: 4, Remedy.ELSEWHERE: 2, Remedy.FRESH: 2}


def remedy(failure: DatabaseError) -> Remedy:
    """Return what helps after *failure*; the most specific line of the table counts."""
    if failure.sqlstate is None:
        return _REMEDIES.get(failure.reason, Remedy.NONE)
    prefixes = (failure.sqlstate[:length] for length in (5, 3, 2))
    return next((_REMEDIES[prefix] for prefix in prefixes if prefix in _REMEDIES), Remedy.NONE)


def may_run_again(failure: DatabaseError, *, writes: bool, attempts: int) -> bool:
    """Whether a statement that failed so, after so many attempts, is to run again.

    Never where it could then happen twice, and no oftener than it can help.
    """
    helps = remedy(failure)
    return attempts < _ATTEMPTS.get(helps, 1) and not (helps is Remedy.FRESH and writes)


def spoils_connection(failure: DatabaseError) -> bool:
    """Whether the connection is of no more use."""
    return remedy(failure) in (Remedy.ELSEWHERE, Remedy.FRESH, Remedy.DISCARD)
