"""Hold a manager, so that nothing deletes its rows until the hold is released.

A hold, and every deletion of a manager's rows, locks the manager first, in the same transaction:
`sql/manager_lock.sql`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from stackmgr.database import statements
from stackmgr.errors import CommandError
from stackmgr.operate.connection import Operator
from stackmgr.operate.output import moment, printable

_LOCK = statements.load("manager_lock")
_FIND = statements.load("manager_hold_find")
_INSERT = statements.load("manager_hold_insert")
_RELEASE = statements.load("manager_hold_release")

NO_MANAGER = "no manager has the external id or manager id {}: see 'stackmgr managers list'"


class HeldError(CommandError):
    """A manager is held: nothing of it is deleted."""


@contextmanager
def not_held(operator: Operator, manager_id: str) -> Iterator[bool]:
    """Open a transaction during which nobody can hold a manager; yield whether the manager exists.

    Raises HeldError if it is held.
    """
    manager = {"manager_id": manager_id}
    with operator.transaction():
        # If the row is deleted during the wait for it, the record of its erasure is found.
        exists = operator.rows(_LOCK, manager) or operator.rows(_LOCK, manager)
        if found := operator.rows(_FIND, manager):
            [(held_at, held_by, reason)] = found
            raise HeldError(
                f"{manager_id} is held since {moment(held_at)} by {printable(held_by)}: {printable(reason)};"
                " 'stackmgr managers release' ends the hold"
            )
        yield bool(exists)


def hold(operator: Operator, manager_id: str, reason: str) -> Any:
    """Hold a manager, also one whose erasure has begun; return the hold.  Raises CommandError."""
    with not_held(operator, manager_id) as exists:
        if not exists:
            raise CommandError(NO_MANAGER.format(manager_id))
        return operator.rows(_INSERT, {"manager_id": manager_id, "reason": reason})[0]


def release(operator: Operator, manager_id: str) -> Any:
    """End the hold of a manager and return it.  Raises CommandError if it is not held."""
    rows = operator.rows(_RELEASE, {"manager_id": manager_id})
    if not rows:
        raise CommandError(f"{manager_id} is not held: nothing was changed")
    return rows[0]
