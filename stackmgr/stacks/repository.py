"""The repository of stacks: each operation is a statement of a SQL file, and then run.

*run* runs a statement for the caller and returns its rows, at least one for an operation.  Two run
a second statement, in a later snapshot: the retry of a create, and a page with a long name.
"""

from collections.abc import Callable, Mapping
from hmac import compare_digest
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from stackmgr.database import retries, statements
from stackmgr.database.session import Operation
from stackmgr.errors import Conflict, DatabaseError, InvalidIdempotencyKey, NotFound
from stackmgr.limits import LONGEST_KEY_BYTES, MAX_PAGE_SIZE, PAGE_NAME_BYTES
from stackmgr.reasons import ReasonSlug
from stackmgr.stacks.configuration import Configuration
from stackmgr.stacks.cursor import Position

_CREATE = statements.load("stack_create")
_FIND_RECEIPT = statements.load("receipt_find")
_GET = statements.load("stack_get")
_LIST = statements.load("stack_list")
_LIST_LONG_NAMES = statements.load("stack_list_long_names")
_UPDATE = statements.load("stack_update")

_UNCHANGED = dict.fromkeys(Configuration._fields)

Run = Callable[[Operation], list[Any]]


class Stack(NamedTuple):
    """A stack with its current configuration; `allocation` is JSON text in normal form.

    Also a row of stack_get, stack_update and stack_list, which has nulls if there is no stack.
    """

    stack_id: str
    revision_id: str
    name: str
    allocation: str
    preset: str
    used_this_hour: bool = True
    created_at: Any = None  # a datetime, in lists


def create_operation(key: str, configuration: Configuration, request_id: str) -> Operation:
    """Return the statement that `create` runs: a new stack under an Idempotency-Key."""
    stack = Stack(str(uuid4()), str(uuid4()), *configuration)

    def row(stack_id: Any, used_this_hour: bool = True) -> Stack:  # noqa: FBT002 - a column
        return stack._replace(stack_id=stack_id, used_this_hour=used_this_hour)

    parameters = {"idempotency_key": key, "input_digest": configuration.digest(), "request_id": request_id}
    return Operation(_CREATE, parameters | stack._asdict(), row)


def create(run: Run, operation: Operation) -> tuple[Stack, bool]:
    """Create the stack of *operation* under its Idempotency-Key, or find the one created under it.

    Returns its current state, and whether this call created it.  Raises Conflict if the key was
    used with other input, and InvalidIdempotencyKey if it does not fit the receipt index.
    """
    try:
        created = _existing(run(operation))
    except DatabaseError as ex:
        # Other limits have this SQLSTATE too, such as the one before transaction ids wrap around.
        key_bytes = len(operation.parameters["idempotency_key"].encode())
        if ex.sqlstate == retries.PROGRAM_LIMIT_EXCEEDED and key_bytes > LONGEST_KEY_BYTES:
            raise InvalidIdempotencyKey(ReasonSlug.IDEMPOTENCY_KEY_TOO_LONG) from ex
        raise
    if created:
        return created[0], True
    found = Operation(_FIND_RECEIPT, operation.parameters, lambda digest, _, *stack: (digest, Stack(*stack)))
    receipts = run(found)
    if not receipts:
        # The manager is being erased, the only way that a receipt goes: the outcome is unknown.
        raise DatabaseError(ReasonSlug.RECEIPT_VANISHED, statement=_FIND_RECEIPT.name)
    input_digest, stack = receipts[0]
    if not compare_digest(input_digest, operation.parameters["input_digest"]):
        raise Conflict(ReasonSlug.IDEMPOTENCY_KEY_REUSED)
    return stack, False


def _existing(rows: list[Any]) -> list[Any]:
    """Return the rows of stacks: a valid key alone has a row without one."""
    return [row for row in rows if row.stack_id is not None]


def get_operation(stack_id: str) -> Operation:
    return Operation(_GET, {"stack_id": stack_id}, Stack)


def get_or_update(run: Run, operation: Operation) -> Stack:
    """Return the stack that *operation* reads or updates.  Raises NotFound, as for another's."""
    found: list[Stack] = _existing(run(operation))
    if not found:
        raise NotFound(ReasonSlug.STACK)
    return found[0]


def list_operation(after: Position, limit: int) -> Operation:
    """Return the statement that `list_page` runs: up to *limit* stacks after a position."""
    parameters = {
        "after_created_at": after.created_at,
        "after_stack_id": after.stack_id,
        "row_limit": limit + 1,
        "page_bytes": PAGE_NAME_BYTES,
        "name_bytes": PAGE_NAME_BYTES // MAX_PAGE_SIZE,
    }
    return Operation(_LIST, parameters, Stack, limit + 1)


def list_page(run: Run, operation: Operation) -> tuple[list[Stack], Position | None]:
    """Return the page that *operation* reads, and the position of the next page if there is one.

    `stack_list` omits each long name.  A page with one is read again by a statement that ends it
    once its names exceed PAGE_NAME_BYTES, and omits the name of the first stack of the next page.
    """
    limit = operation.parameters["row_limit"] - 1
    rows: list[Stack] = _existing(run(operation))
    if any(stack.name is None for stack in rows[:limit]):
        rows = run(operation._replace(statement=_LIST_LONG_NAMES, max_rows=None))
    page = [stack for stack in rows[:limit] if stack.name is not None]
    if len(page) == len(rows):
        return page, None
    return page, Position(page[-1].created_at, UUID(page[-1].stack_id))


def update_operation(stack_id: str, changes: Mapping[str, str], request_id: str) -> Operation:
    """Return the statement that appends a revision with *changes* to a stack."""
    ids = {"stack_id": stack_id, "revision_id": str(uuid4()), "request_id": request_id}
    return Operation(_UPDATE, {**_UNCHANGED, **changes, **ids}, Stack)
