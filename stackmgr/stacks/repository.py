"""The repository of stacks: two functions per operation, one that plans its SQL file and one that runs it.

The exceptions run a second statement, in a later snapshot: the retry of a create reads the receipt, and a
page with a long name is read again.
"""

from collections.abc import Mapping
from hmac import compare_digest
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from stackmgr.database import retries, statements
from stackmgr.database.session import Caller, Planned, Session
from stackmgr.errors import Conflict, DatabaseError, InvalidIdempotencyKey, NotFound
from stackmgr.limits import PAGE_NAME_BYTES
from stackmgr.reasons import ReasonSlug
from stackmgr.stacks import cursor
from stackmgr.stacks.configuration import Changes, Configuration
from stackmgr.stacks.cursor import Position

_CREATE = statements.load("stack_create")
_FIND_RECEIPT = statements.load("receipt_find")
_GET = statements.load("stack_get")
_LIST = statements.load("stack_list")
_LIST_LONG_NAMES = statements.load("stack_list_long_names")
_UPDATE = statements.load("stack_update")

_NAME = 2  # the column of a list


class Stack(NamedTuple):
    """A stack with its current configuration; `allocation` is JSON text in normal form."""

    stack_id: str
    revision_id: str
    name: str
    allocation: str
    preset: str


def plan_create(key: str, configuration: Configuration, request_id: str) -> Planned:
    """Return the statement that `create` runs: a new stack under an Idempotency-Key."""
    parameters = {
        "idempotency_key": key,
        "input_digest": configuration.digest(),
        "stack_id": str(uuid4()),
        "revision_id": str(uuid4()),
        "name": configuration.name,
        "allocation": configuration.allocation,
        "preset": configuration.preset,
        "request_id": request_id,
    }
    return Planned(_CREATE, parameters)


def create(session: Session, caller: Caller) -> tuple[Stack, bool]:
    """Create the planned stack under its Idempotency-Key, or find the one created under it.

    Returns the current state of the stack, and whether this call created it.  Raises Conflict if the key was
    used with other input, and InvalidIdempotencyKey if it is longer than the receipt index can hold.
    """
    wanted = session.planned().parameters
    try:
        created = session.planned_rows(caller)
    except DatabaseError as ex:
        if ex.sqlstate == retries.PROGRAM_LIMIT_EXCEEDED:
            # Among the indexed values, only the key's length is the client's choice.
            raise InvalidIdempotencyKey(ReasonSlug.IDEMPOTENCY_KEY_TOO_LONG) from ex
        raise
    if created:
        return Stack(*(wanted[column] for column in Stack._fields)), True
    return _created_before(session, caller.manager_id, wanted), False


def _created_before(session: Session, manager_id: str, wanted: Mapping[str, Any]) -> Stack:
    receipt = {"manager_id": manager_id, "idempotency_key": wanted["idempotency_key"]}
    row = session.row(_FIND_RECEIPT, receipt)
    if row is None:
        # The manager is being erased, the only way that a receipt goes: nothing is known of this creation.
        raise DatabaseError(ReasonSlug.RECEIPT_VANISHED, statement=_FIND_RECEIPT.name)
    if not compare_digest(row[0], wanted["input_digest"]):
        raise Conflict(ReasonSlug.IDEMPOTENCY_KEY_REUSED)
    return Stack(*row[1:6])


def plan_get(stack_id: str) -> Planned:
    """Return the statement that `get` runs."""
    return Planned(_GET, {"stack_id": stack_id})


def get(session: Session, caller: Caller) -> Stack:
    """Return the planned stack.  Raises NotFound, also for another manager's."""
    rows = session.planned_rows(caller)
    if not rows:
        raise NotFound(ReasonSlug.STACK)
    return Stack(*rows[0])


def plan_list(after: Position, limit: int) -> Planned:
    """Return the statement that `list_page` runs: up to *limit* stacks after a position."""
    parameters = {
        "after_created_at": after.created_at,
        "after_stack_id": after.stack_id,
        "row_limit": limit + 1,
        "page_bytes": PAGE_NAME_BYTES,
    }
    return Planned(_LIST, parameters, max_rows=limit + 1)


def list_page(session: Session, caller: Caller) -> tuple[list[Stack], Position | None]:
    """Return the planned page, and the position of the next page if there is one.

    `stack_list` omits each long name.  A page with one is read again by the statement that ends it once its
    names exceed PAGE_NAME_BYTES; that statement omits the name of the first stack of the next page.
    """
    limit = session.planned().max_rows - 1
    rows = session.planned_rows(caller)
    if None in [row[_NAME] for row in rows[:limit]]:
        rows = session.planned_rows(caller, _LIST_LONG_NAMES)
    page = [Stack(*row[:5]) for row in rows[:limit] if row[_NAME] is not None]
    if len(page) == len(rows):
        return page, None
    last = rows[len(page) - 1]
    return page, cursor.Position(last[5], UUID(last[0]))


def plan_update(stack_id: str, changes: Changes, request_id: str) -> Planned:
    """Return the statement that `update` runs: a revision of a stack with *changes*."""
    parameters = {
        "stack_id": stack_id,
        "revision_id": str(uuid4()),
        "name": changes.name,
        "allocation": changes.allocation,
        "preset": changes.preset,
        "request_id": request_id,
    }
    return Planned(_UPDATE, parameters)


# The statement's rows are those of a read: the stack with its new revision, or none.
update = get
