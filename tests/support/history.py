"""Check the recorded requests and responses of clients against the database.

Each client records its operations; `dump` reads the receipts, stacks and revisions when all is over; `check`
returns every contradiction between the two.  An operation is tagged by its X-Request-Id, which the service
keeps beside the revision it makes, so that it is known which operation each revision is the work of.
"""

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import psycopg

from tests.support.examples import COLUMNS, FIELDS, from_columns

Configuration = dict[str, Any]


@dataclass(slots=True)
class Operation:
    """One request and its response.  Times are of the monotonic clock; `status` is None without a response.

    `supplied` holds the fields of a write in normal form; `manager` and `owner` are external ids,
    the owner being the manager to whom `stack_id`, the requested stack, belongs.  `reached` is
    false where no server took the request; `ended` is when it ended without a response.
    """

    tag: str
    kind: str
    manager: str
    sent: float
    supplied: Configuration = field(default_factory=dict)
    key: str | None = None
    stack_id: str | None = None
    owner: str | None = None
    completed: float = float("inf")
    ended: float = float("inf")
    status: int | None = None
    body: Any = None
    reached: bool = True

    @property
    def writes(self) -> bool:
        return self.kind in {"create", "update"}

    @property
    def acknowledged(self) -> bool:
        return self.status is not None and self.status < 300

    @property
    def rejected(self) -> bool:
        """Whether nothing can have changed: the response states it, or the service never got the request."""
        return not self.reached or self.status in {*range(400, 500), 503}

    @property
    def replayed(self) -> bool:
        return self.kind == "create" and self.status == 200

    def seen(self) -> list[Configuration]:
        if not self.acknowledged:
            return []
        return self.body["items"] if self.kind == "list" else [self.body]


@dataclass(frozen=True)
class Revision:
    """A row of stack_revisions; `tag` is the request that made it."""

    revision_id: str
    stack_id: str
    manager: str
    number: int
    tag: str
    configuration: Configuration


@dataclass(frozen=True)
class Dump:
    """The database: revisions by stack in order, current revisions by stack, receipts."""

    revisions: dict[str, list[Revision]]
    current: dict[str, tuple[str, Configuration]]
    receipts: dict[tuple[str, str], str]


@dataclass(frozen=True, order=True)
class Violation:
    """A violated rule, and the operation or row that violates it."""

    rule: str
    what: str


Made = dict[str, Revision]
_parsed = cache(json.loads)


def _configuration(*texts: str) -> Configuration:
    columns = dict(zip(COLUMNS, texts, strict=True))
    return from_columns(columns | {"allocation": _parsed(columns["allocation"])})


def dump(connection: psycopg.Connection, managers: set[str]) -> Dump:
    """Read all of these managers (external ids), to be called once no operation is running."""

    def rows(columns: str, table: str) -> list[Any]:
        query = (
            f"SELECT external_id::text, stack_id::text, {columns} FROM stackmgr.{table} AS t"
            " JOIN stackmgr.managers USING (manager_id) WHERE external_id = ANY(%s::uuid[])"
        )
        return connection.execute(query.encode(), (list(managers),)).fetchall()

    configuration = ", ".join(f"{name}::text" for name in COLUMNS)
    revisions: dict[str, list[Revision]] = defaultdict(list)
    found = rows(f"revision_id::text, revision_number, request_id, {configuration}", "stack_revisions")
    for manager, stack_id, revision_id, number, tag, *given in sorted(found, key=lambda row: row[3]):
        made = Revision(revision_id, stack_id, manager, number, tag, _configuration(*given))
        revisions[stack_id].append(made)
    current = {
        stack_id: (revision_id, _configuration(*given))
        for _, stack_id, revision_id, *given in rows(f"revision_id::text, {configuration}", "stacks")
    }
    receipts = {(manager, key): stack for manager, stack, key in rows("idempotency_key", "creation_receipts")}
    return Dump(dict(revisions), current, receipts)


def check(operations: list[Operation], found: Dump) -> list[Violation]:
    """Return every violation of the rules in the history of managers whose operations were all recorded."""
    rules = (_lineage, _once, _truth, _one_stack_for_a_key, _tenancy, _listing, _order)
    made = {revision.tag: revision for line in found.revisions.values() for revision in line}
    return sorted({violation for rule in rules for violation in rule(operations, found, made)})


def _lineage(operations: list[Operation], found: Dump, made: Made) -> Iterator[Violation]:
    """R1: a revision differs from its predecessor in the supplied fields only; the last one is the stack."""
    by_tag = {operation.tag: operation for operation in operations}
    for stack_id, line in found.revisions.items():
        before: Configuration = {}
        for number, revision in enumerate(line, 1):
            operation = by_tag.get(revision.tag)
            if operation is None or revision.number != number:
                yield Violation("R1", f"revision {revision.number} of {stack_id}: unknown, or out of order")
                continue
            for name in FIELDS:
                if revision.configuration[name] != operation.supplied.get(name, before.get(name)):
                    yield Violation("R1", f"{operation.tag} changed {name}, or did not")
            before = revision.configuration
        if found.current.get(stack_id) != (line[-1].revision_id, line[-1].configuration):
            yield Violation("R1", f"stack {stack_id} is not its last revision")


def _once(operations: list[Operation], found: Dump, made: Made) -> Iterator[Violation]:
    """R2: no operation was carried out twice, and no rejected operation was carried out."""
    if sum(map(len, found.revisions.values())) != len(made):
        yield Violation("R2", "an operation made more than one revision")
    for operation in operations:
        if operation.tag in made and (operation.rejected or not operation.writes or operation.replayed):
            yield Violation("R2", f"{operation.tag} made a revision, against its response {operation.status}")


def _truth(operations: list[Operation], found: Dump, made: Made) -> Iterator[Violation]:
    """R3: what was acknowledged exists, and each response equals the revision it names."""
    by_id = {revision.revision_id: revision for line in found.revisions.values() for revision in line}
    for operation in operations:
        own = made.get(operation.tag)
        if operation.acknowledged and operation.writes and not operation.replayed and own is None:
            yield Violation("R3", f"{operation.tag} was acknowledged and is lost")
        for stack in operation.seen():
            revision = by_id.get(stack["current_revision_id"])
            returned = {name: stack[name] for name in ("id", *FIELDS)}
            if revision is None or {"id": revision.stack_id, **revision.configuration} != returned:
                yield Violation("R3", f"{operation.tag} returned what no revision contains")
            elif operation.writes and not operation.replayed and revision is not own:
                yield Violation("R3", f"{operation.tag} returned the result of {revision.tag}")


def _one_stack_for_a_key(operations: list[Operation], found: Dump, made: Made) -> Iterator[Violation]:
    """R6: an Idempotency-Key of a manager identifies one stack and one input, and a stack has one key."""
    if sorted(found.receipts.values()) != sorted(found.current):
        yield Violation("R6", "a stack has no receipt, or two")
    stacks: dict[tuple[str, str], set[str]] = defaultdict(set)
    for operation in operations:
        if operation.kind == "create" and operation.key is not None:
            seen_ids = {stack["id"] for stack in operation.seen()}
            kept = {made[operation.tag].stack_id} if operation.tag in made else set()
            stacks[operation.manager, operation.key] |= seen_ids | kept
            line = found.revisions.get(found.receipts.get((operation.manager, operation.key), ""))
            same = line is not None and line[0].configuration == operation.supplied
            if (operation.acknowledged and not same) or (operation.status == 409 and same):
                yield Violation("R6", f"{operation.tag} returned {operation.status}, against its input")
    for (manager, key), ids in stacks.items():
        receipt = found.receipts.get((manager, key))
        if ids and ids != {receipt}:
            yield Violation("R6", f"key {key} stands for {len(ids)} stacks, its receipt for {receipt}")


def _tenancy(operations: list[Operation], found: Dump, made: Made) -> Iterator[Violation]:
    """R7: a manager reaches its own stacks and no others."""
    for operation in operations:
        for stack in operation.seen():
            line = found.revisions.get(stack["id"])
            if line and line[0].manager != operation.manager:
                yield Violation("R7", f"{operation.tag} reached a stack of another manager")
        if operation.status == 404 and operation.owner == operation.manager:
            yield Violation("R7", f"{operation.tag} was denied a stack of its own")


def _listing(operations: list[Operation], found: Dump, made: Made) -> Iterator[Violation]:
    """R7 for lists: a complete list has every stack created before the request, and none twice."""
    creates = [each for each in operations if each.kind == "create" and each.acknowledged]
    for operation in operations:
        if operation.kind != "list" or not operation.acknowledged:
            continue
        listed = [stack["id"] for stack in operation.seen()]
        if len(listed) != len(set(listed)):
            yield Violation("R7", f"{operation.tag} was shown a stack twice")
        own = (each for each in creates if each.manager == operation.manager)
        expected = {each.body["id"] for each in own if each.completed < operation.sent}
        if operation.body["next_cursor"] is None and expected - set(listed):
            yield Violation("R7", f"{operation.tag} was not shown a stack of its own")


def _order(operations: list[Operation], found: Dump, made: Made) -> Iterator[Violation]:
    """R4, for retried creations R8: a later request sees no older revision, and a later write is newer."""
    numbers = {r.revision_id: r.number for line in found.revisions.values() for r in line}
    completed: list[tuple[float, str, int]] = []
    reads: list[tuple[float, str, int, Operation]] = []
    for operation in operations:
        for stack in operation.seen():
            number = numbers.get(stack["current_revision_id"])
            if number is not None:
                completed.append((operation.completed, stack["id"], number))
                reads.append((operation.sent, stack["id"], number, operation))
    completed.sort()
    newest: dict[str, int] = defaultdict(int)
    position = 0
    for sent, stack_id, number, operation in sorted(reads, key=lambda entry: entry[0]):
        while position < len(completed) and completed[position][0] < sent:
            _, earlier, returned = completed[position]
            newest[earlier] = max(newest[earlier], returned)
            position += 1
        least = newest[stack_id] + (operation.kind == "update")
        if number < least:
            rule = "R8" if operation.replayed else "R4"
            yield Violation(rule, f"{operation.tag} got revision {number} after {newest[stack_id]} was known")
