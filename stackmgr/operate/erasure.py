"""Erase a manager, in batches, recorded; or hold it, so that nothing deletes its rows.

A hold, and every deletion of a manager's rows, locks the manager first, in the same transaction:
`sql/manager_lock.sql`.

The rows are deleted in the order of the heap: receipts, then revisions, then stacks.  Receipts have
no index on the stack they refer to, because each create would pay for it.  So each deleted stack
reads all index entries of the manager's receipts, dead ones too.  If there are many, a vacuum
removes them before the first stack is deleted.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import groupby, islice
from operator import attrgetter
from typing import Any

from stackmgr.database import statements
from stackmgr.errors import CommandError
from stackmgr.limits import LONGEST_REQUEST_SECONDS
from stackmgr.operate.command import moment, print_note, printable
from stackmgr.operate.operator import Operator

_LOCK = statements.load("manager_lock")
_HOLD_FIND = statements.load("manager_hold_find")
_HOLD_INSERT = statements.load("manager_hold_insert")
_HOLD_RELEASE = statements.load("manager_hold_release")
_BEGIN = statements.load("manager_erasure_begin")
_ROWS = statements.load("manager_erasure_rows")
_DEAD_RECEIPTS = statements.load("manager_erasure_dead_receipts")
_FINISH = statements.load("manager_erasure_finish")

# By the step of _ROWS; the last one needs few dead receipts.
_DELETE = {
    1: statements.load("manager_erasure_delete_receipts"),
    2: statements.load("manager_erasure_delete_revisions"),
    3: statements.load("manager_erasure_delete_stacks"),
}

_MANY = 10_000
_VACUUM_AGAIN_SECONDS = 10.0

NO_MANAGER = "no manager has the external id or manager id {}: see 'stackmgr managers list'"

_BATCH = 500
# The pause after each batch, as a multiple of its time, so that requests get the database.
_PAUSE = 1.0

_REPORT_SECONDS = 5.0

# Called with the number of rows deleted, their total, and what the erasure waits for, if anything.
Report = Callable[[int, int, str], None]


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
        if found := operator.rows(_HOLD_FIND, manager):
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
        return operator.rows(_HOLD_INSERT, {"manager_id": manager_id, "reason": reason})[0]


def release(operator: Operator, manager_id: str) -> Any:
    """End the hold of a manager and return it.  Raises CommandError if it is not held."""
    rows = operator.rows(_HOLD_RELEASE, {"manager_id": manager_id})
    if not rows:
        raise CommandError(f"{manager_id} is not held: nothing was changed")
    return rows[0]


class Progress:
    """Prints the progress of an erasure at intervals."""

    _next = 0.0

    def __call__(self, done: int, total: int, remark: str) -> None:
        if remark or time.monotonic() >= self._next:
            self._next = time.monotonic() + _REPORT_SECONDS
            print_note(remark or f"{done:,} of about {total:,} rows deleted")


def erase(operator: Operator, manager_id: str, external_id: str, progress: Report) -> Any:
    """Unbind a manager, revoke its keys, delete all its data; return the numbers of deleted rows.

    A request that found the manager before may still create a stack: nothing is deleted until no
    such request can run.  Returns None, and changes nothing, when the manager is neither bound to
    *external_id* nor recorded with it.  May be interrupted and repeated: every batch is committed
    by itself.  Raises CommandError once the manager is held: what was deleted before stays deleted.
    """
    manager = {"manager_id": manager_id, "external_id": external_id}
    with not_held(operator, manager_id):
        if not operator.rows(_BEGIN, manager):
            return None
    progress(0, 0, f"waiting {LONGEST_REQUEST_SECONDS} s for requests in progress")
    operator.pause(LONGEST_REQUEST_SECONDS)
    while True:
        _delete_rows(operator, manager_id, progress)
        with not_held(operator, manager_id):
            finished = operator.rows(_FINISH, manager)
        if finished:
            return finished[0]


def _delete_rows(operator: Operator, manager_id: str, progress: Report) -> None:
    """Delete the receipts, revisions and stacks that the manager has now."""
    done = 0
    rows = operator.iterate(_ROWS, {"manager_id": manager_id})
    for step, found in groupby(rows, key=attrgetter("step")):
        is_vacuumed = step != max(_DELETE)
        while batch := list(islice(found, _BATCH)):
            total = batch[0].total
            while not is_vacuumed and total - done >= _MANY:
                operator.vacuum_receipts()
                [(dead,)] = operator.rows(_DEAD_RECEIPTS, {})
                is_vacuumed = dead < _MANY
                if not is_vacuumed:
                    wait = f"waiting for an older transaction, which may still read {dead:,} deleted receipts"
                    progress(done, total, wait)
                    operator.pause(_VACUUM_AGAIN_SECONDS)
            is_vacuumed = True
            began = time.monotonic()
            _delete_batch(operator, manager_id, step, [row.position for row in batch])
            done += len(batch)
            progress(done, total, "")
            operator.pause(_PAUSE * (time.monotonic() - began))


def _delete_batch(operator: Operator, manager_id: str, step: int, positions: list[str]) -> None:
    with not_held(operator, manager_id):
        operator.check_keys_by_index()
        operator.rows(_DELETE[step], {"manager_id": manager_id, "positions": positions})
