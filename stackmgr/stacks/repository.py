"""The repository of stacks: one function per operation, each of which runs one SQL file.

The exceptions run a second statement, in a later snapshot: the retry of a create reads the receipt, and a
page with a long name is read again.
"""

from dataclasses import dataclass
from hmac import compare_digest
from typing import NamedTuple
from uuid import UUID, uuid4

from stackmgr.database import retries, statements
from stackmgr.database.session import PlannedRead, Session
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


@dataclass(frozen=True, slots=True)
class Actor:
    """Who makes a request, with which key, and which request it is: recorded with each revision."""

    manager_id: str
    identity_id: str
    request_id: str
    key_id: str | None = None


class Stack(NamedTuple):
    """A stack with its current configuration; `allocation` is JSON text in normal form."""

    stack_id: str
    revision_id: str
    name: str
    allocation: str
    preset: str


def create(session: Session, actor: Actor, key: str, configuration: Configuration) -> tuple[Stack, bool]:
    """Create a stack under an Idempotency-Key, or find the one created under it.

    Returns the current state of the stack, and whether this call created it.  Raises Conflict if the key was
    used with other input, and InvalidIdempotencyKey if it is longer than the receipt index can hold.
    """
    stack = Stack(
        str(uuid4()), str(uuid4()), configuration.name, configuration.allocation, configuration.preset
    )
    digest = configuration.digest()
    parameters = {
        "manager_id": actor.manager_id,
        "idempotency_key": key,
        "input_digest": digest,
        "stack_id": stack.stack_id,
        "revision_id": stack.revision_id,
        "name": stack.name,
        "allocation": stack.allocation,
        "preset": stack.preset,
        "identity_id": actor.identity_id,
        "request_id": actor.request_id,
        "key_id": actor.key_id,
    }
    try:
        created = session.row(_CREATE, parameters)
    except DatabaseError as ex:
        if ex.sqlstate == retries.PROGRAM_LIMIT_EXCEEDED:
            # Among the indexed values, only the key's length is the client's choice.
            raise InvalidIdempotencyKey(ReasonSlug.IDEMPOTENCY_KEY_TOO_LONG) from ex
        raise
    if created is not None:
        return stack, True
    return _created_before(session, actor, key, digest), False


def _created_before(session: Session, actor: Actor, key: str, digest: bytes) -> Stack:
    row = session.row(_FIND_RECEIPT, {"manager_id": actor.manager_id, "idempotency_key": key})
    if row is None:
        # The manager is being erased, the only way that a receipt goes: nothing is known of this creation.
        raise DatabaseError(ReasonSlug.RECEIPT_VANISHED, statement=_FIND_RECEIPT.name)
    if not compare_digest(row[0], digest):
        raise Conflict(ReasonSlug.IDEMPOTENCY_KEY_REUSED)
    return Stack(*row[1:6])


def plan_get(stack_id: str) -> PlannedRead:
    """Return the read that `get` runs."""
    return PlannedRead(_GET, {"stack_id": stack_id}, max_rows=1)


def get(session: Session, manager_id: str) -> Stack:
    """Return a manager's stack by the planned read.  Raises NotFound, also for another manager's."""
    rows = session.planned_rows(manager_id)
    if not rows:
        raise NotFound(ReasonSlug.STACK)
    return Stack(*rows[0])


def plan_list(after: Position, limit: int) -> PlannedRead:
    """Return the read that `list_page` runs: up to *limit* stacks after a position."""
    parameters = {
        "after_created_at": after.created_at,
        "after_stack_id": after.stack_id,
        "row_limit": limit + 1,
        "page_bytes": PAGE_NAME_BYTES,
    }
    return PlannedRead(_LIST, parameters, max_rows=limit + 1)


def list_page(session: Session, manager_id: str, limit: int) -> tuple[list[Stack], Position | None]:
    """Return a page by the planned read, and the position of the next page if there is one.

    `stack_list` omits each long name.  A page with one is read again by the statement that ends it once its
    names exceed PAGE_NAME_BYTES; that statement omits the name of the first stack of the next page.
    """
    rows = session.planned_rows(manager_id)
    if None in [row[_NAME] for row in rows[:limit]]:
        rows = session.planned_rows(manager_id, _LIST_LONG_NAMES)
    page = [Stack(*row[:5]) for row in rows[:limit] if row[_NAME] is not None]
    if len(page) == len(rows):
        return page, None
    last = rows[len(page) - 1]
    return page, cursor.Position(last[5], UUID(last[0]))


def update(session: Session, actor: Actor, stack_id: str, changes: Changes) -> Stack:
    """Append a revision with *changes* and return the result.  Raises NotFound as `get` does."""
    row = session.row(
        _UPDATE,
        {
            "manager_id": actor.manager_id,
            "stack_id": stack_id,
            "revision_id": str(uuid4()),
            "name": changes.name,
            "allocation": changes.allocation,
            "preset": changes.preset,
            "identity_id": actor.identity_id,
            "request_id": actor.request_id,
            "key_id": actor.key_id,
        },
    )
    if row is None:
        raise NotFound(ReasonSlug.STACK)
    return Stack(*row)
