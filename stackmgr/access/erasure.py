"""Delete everything that is kept of one manager: an operator's command, in batches, recorded.

The receipts go first, all of them: no index serves their foreign key from the side of the stacks, so each
deleted stack reads what is left of the manager's receipts.  Such an index would cost every create its share.
"""

import time
from dataclasses import dataclass

from stackmgr.database import statements
from stackmgr.database.session import Session

_BEGIN = statements.load("manager_erasure_begin")
_DELETE_RECEIPTS = statements.load("manager_erasure_delete_receipts")
_DELETE_STACKS = statements.load("manager_erasure_delete_stacks")
_FINISH = statements.load("manager_erasure_finish")
_PLAN = statements.load("manager_erasure_plan")

_BATCH = 2000

# Longer than a request can run: nginx's proxy_read_timeout, below which the service's deadlines must be.
REQUEST_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Erased:
    """How many rows of a manager were deleted."""

    stacks: int
    revisions: int
    receipts: int
    keys: int


def erase(session: Session, manager_id: str, external_id: str) -> Erased | None:
    """Unbind a manager and revoke its keys, then delete all its data; return what was deleted.

    A request that found the manager before may still create a stack: what is left once no such request can
    run is deleted as well.  Returns None, and changes nothing, when the manager is neither bound to
    *external_id* nor recorded with it.  May be interrupted and repeated: every batch is committed by itself.
    """
    manager = {"manager_id": manager_id, "external_id": external_id}
    if session.row(_BEGIN, manager) is None:
        return None
    last_request_ends = time.monotonic() + REQUEST_SECONDS
    session.rows(_PLAN, {})
    _delete_rows(session, manager_id)
    time.sleep(max(0.0, last_request_ends - time.monotonic()))
    while True:
        _delete_rows(session, manager_id)
        if (row := session.row(_FINISH, manager)) is not None:
            return Erased(*row)


def _delete_rows(session: Session, manager_id: str) -> None:
    batch = {"manager_id": manager_id, "row_limit": _BATCH}
    for statement in (_DELETE_RECEIPTS, _DELETE_STACKS):
        while session.rows(statement, batch)[0][0]:
            pass
