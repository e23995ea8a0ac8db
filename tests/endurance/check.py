"""Compare the records of a long run with the database, in memory that does not grow with the run.

The records are copied into a table beside the service's.  Then revisions and records are read side by side,
stack by stack, and PostgreSQL finds what needs no order.
"""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

import psycopg

from tests.endurance.records import (
    CREATE,
    UPDATE,
    digest,
    idempotency_key,
    read,
    request_id,
    supplied,
)

_LISTED = 50
_ROWS_AT_A_TIME = 5000
_END = "~"  # after every UUID
_NEVER = float("inf")

_TABLE = b"""
CREATE SCHEMA endurance;
CREATE UNLOGGED TABLE endurance.records (
    number integer, kind smallint, external_id uuid, reached boolean, status smallint, key integer,
    sent float8, completed float8, stack_id uuid, revision_id uuid, digest bigint,
    request_id text COLLATE "C", idempotency_key text COLLATE "C"
);
CREATE UNLOGGED TABLE endurance.managers AS SELECT manager_id, external_id FROM stackmgr.managers;
"""
_COPY = b"COPY endurance.records FROM STDIN"
_ANALYZE = b"ANALYZE endurance.records, stackmgr.stack_revisions, stackmgr.stacks, stackmgr.creation_receipts"

_REVISIONS = b"""
SELECT
    r.stack_id::text, r.revision_number, r.revision_id::text, r.request_id,
    r.name, r.allocation::text, r.preset,
    m.external_id::text, s.revision_id::text, s.revision_number, s.name, s.allocation::text, s.preset,
    c.number, c.kind, c.external_id::text, c.reached, c.status, c.key, c.sent, c.completed,
    c.stack_id::text, c.revision_id::text, c.digest
FROM stackmgr.stack_revisions r
JOIN endurance.managers m USING (manager_id)
LEFT JOIN stackmgr.stacks s USING (manager_id, stack_id)
LEFT JOIN endurance.records c ON c.request_id = r.request_id
ORDER BY r.stack_id, r.revision_number
"""
_READS = b"""
SELECT stack_id::text, number, external_id::text, sent, completed, revision_id::text, digest
FROM endurance.records
WHERE status = 200 AND kind <> 2
ORDER BY stack_id
"""
# What takes no order: each query returns the numbers, ids or request ids that break the rule.
RULES = {
    "lost": b"""
        SELECT c.request_id FROM endurance.records c
        WHERE (c.status = 201 OR (c.status = 200 AND c.kind = 2))
            AND NOT EXISTS (SELECT FROM stackmgr.stack_revisions r WHERE r.request_id = c.request_id)""",
    "twice": b"""
        SELECT request_id FROM stackmgr.stack_revisions GROUP BY request_id HAVING count(*) > 1""",
    "a key without its receipt": b"""
        SELECT c.request_id FROM endurance.records c JOIN endurance.managers m USING (external_id)
        LEFT JOIN stackmgr.creation_receipts p USING (manager_id, idempotency_key)
        WHERE c.kind = 0 AND c.status IN (200, 201) AND p.stack_id IS DISTINCT FROM c.stack_id""",
    "a receipt that no creation can have made": b"""
        SELECT p.idempotency_key FROM stackmgr.creation_receipts p
        WHERE NOT EXISTS (
            SELECT FROM endurance.records c
            WHERE c.idempotency_key = p.idempotency_key AND c.kind = 0 AND c.reached
                AND c.status IN (0, 200, 201, 500))""",
    "a stack without one receipt and a revision": b"""
        SELECT s.stack_id::text FROM stackmgr.stacks s
        LEFT JOIN stackmgr.creation_receipts p USING (manager_id, stack_id)
        GROUP BY s.stack_id
        HAVING count(p.stack_id) <> 1
        UNION ALL
        SELECT s.stack_id::text FROM stackmgr.stacks s
        WHERE NOT EXISTS (
            SELECT FROM stackmgr.stack_revisions r
            WHERE r.manager_id = s.manager_id AND r.stack_id = s.stack_id)""",
    "a status that no fault explains": b"""
        SELECT status || ' ' || request_id FROM endurance.records
        WHERE status NOT IN (0, 500, 503)
            AND (kind, status) NOT IN ((0, 200), (0, 201), (1, 409), (2, 200), (3, 200))
        """,
}


class _Revision(NamedTuple):
    """A row of _REVISIONS; from `operation` on, what the client recorded of the request that made it."""

    stack_id: str
    number: int
    revision_id: str
    request_id: str
    name: str
    allocation: str
    preset: str
    owner: str
    current_id: str
    current_number: int
    current_name: str
    current_allocation: str
    current_preset: str
    operation: int
    kind: int | None
    external_id: str
    reached: bool
    status: int
    key: int
    sent: float
    completed: float
    seen_stack: str
    seen_revision: str
    digest: int

    @property
    def current(self) -> tuple[Any, ...]:
        return self[8:13]


class _Read(NamedTuple):
    """A row of _READS."""

    stack_id: str
    operation: int
    external_id: str
    sent: float
    completed: float
    seen_revision: str
    digest: int


@dataclass
class Findings:
    """What the comparison found.  `landed` counts the writes without an outcome that took place."""

    violations: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)
    revisions: int = 0
    landed: int = 0

    def add(self, rule: str, what: str) -> None:
        self.violations[rule] += 1
        if len(self.examples) < _LISTED:
            self.examples.append(f"{rule}: {what}")


def compare(connection: psycopg.Connection, recording: Path, external_ids: list[str]) -> Findings:
    """Compare, as the database's owner, once no operation runs.  The caller rolls back."""
    findings = Findings()
    connection.execute(_TABLE)
    with connection.cursor() as cursor, cursor.copy(_COPY) as copy:
        for row in _rows(recording, external_ids):
            copy.write_row(row)
    connection.execute(_ANALYZE)
    for rule, query in RULES.items():
        for (what,) in connection.execute(query):
            findings.add(rule, what)
    _walk(connection, findings)
    return findings


def _rows(recording: Path, external_ids: list[str]) -> Iterator[tuple[Any, ...]]:
    for record in read(recording):
        yield (
            *(record.number, record.kind, external_ids[record.manager], record.reached, record.status),
            *(record.key, record.sent, record.completed, UUID(bytes=record.stack)),
            *(UUID(bytes=record.revision), record.digest),
            *(request_id(record.number), idempotency_key(record.key)),
        )


@dataclass(frozen=True)
class _Response:
    """An operation that returned revision *number*, or, without a response, made it."""

    request_id: str
    sent: float
    completed: float
    number: int
    is_update: bool = False


def _walk(connection: psycopg.Connection, findings: Findings) -> None:
    """Read each stack's revisions, and beside them the responses that contain it."""
    with connection.cursor("revisions") as revisions, connection.cursor("reads") as reads:
        revisions.itersize = reads.itersize = _ROWS_AT_A_TIME
        of_stack = _by_stack(map(_Read._make, reads.execute(_READS)))
        next_id, next_reads = next(of_stack)
        for stack_id, line in _by_stack(map(_Revision._make, revisions.execute(_REVISIONS))):
            while next_id < stack_id:
                findings.add("an unknown stack", next_id)
                next_id, next_reads = next(of_stack)
            if stack_id == _END:
                return
            findings.revisions += len(line)
            responses = _lineage(stack_id, line, findings)
            if next_id == stack_id:
                responses += _reads(line, next_reads, findings)
                next_id, next_reads = next(of_stack)
            _order(responses, findings)


_Row = TypeVar("_Row", _Read, _Revision)


def _by_stack(rows: Iterator[_Row]) -> Iterator[tuple[str, list[_Row]]]:
    """Return the rows of one stack after the other, and at last none, of an id after every other."""
    for stack_id, group in groupby(rows, itemgetter(0)):
        yield stack_id, list(group)
    yield _END, []


def _lineage(stack_id: str, line: list[_Revision], findings: Findings) -> list[_Response]:
    """Each revision has one operation, and differs from its predecessor in what that supplied."""
    responses = []
    content: list[Any] = [None, None, None]
    for position, row in enumerate(line, 1):
        what = f"{row.request_id}, revision {row.number} of {stack_id}"
        stored = [row.name, json.loads(row.allocation), row.preset]
        if row.number != position or (position == 1) != (row.kind == CREATE):
            findings.add("out of place", what)
        if row.kind not in (CREATE, UPDATE):
            findings.add("a revision that no operation made", what)
        else:
            creates = row.kind == CREATE
            given = supplied(row.key if creates else row.operation, complete=creates)
            content = [new if new is not None else old for new, old in zip(given, content, strict=True)]
            if content != stored:
                findings.add("other content than was supplied", what)
            _compare_response(row, stored, what, findings)
            responses.append(_response(row, row.number, is_update=not creates))
        content = stored
    last = line[-1]
    if last.current != (last.revision_id, last.number, last.name, last.allocation, last.preset):
        findings.add("a stack that is not its last revision", stack_id)
    return responses


def _compare_response(row: _Revision, stored: list[Any], what: str, findings: Findings) -> None:
    if row.status == (201 if row.kind == CREATE else 200):
        if (row.seen_stack, row.seen_revision, row.digest) != (
            row.stack_id,
            row.revision_id,
            digest(*stored),
        ):
            findings.add("another response than the revision", what)
    elif row.reached and row.status in (0, 500):
        findings.landed += 1
    else:
        findings.add("made against the response", f"{what}, {row.status}")
    if row.external_id != row.owner:
        findings.add("another manager's", what)


def _response(row: Any, number: int, *, is_update: bool = False) -> _Response:
    return _Response(request_id(row.operation), row.sent, row.completed, number, is_update)


def _reads(line: list[_Revision], reads: list[_Read], findings: Findings) -> list[_Response]:
    """What was read, by a get or a replay, is a revision of the stack, and the manager's own."""
    revisions = {row.revision_id: row for row in line}
    responses = []
    for read_ in reads:
        what = request_id(read_.operation)
        row = revisions.get(read_.seen_revision)
        if row is None or read_.digest != digest(row.name, json.loads(row.allocation), row.preset):
            findings.add("a response that no revision contains", what)
            continue
        if read_.external_id != row.owner:
            findings.add("another manager's", what)
        responses.append(_response(read_, row.number))
    return responses


def _order(responses: list[_Response], findings: Findings) -> None:
    """A later request sees no older revision, a later write makes a newer one, no cause is sent later."""
    completed = sorted(responses, key=lambda response: response.completed)
    made = {response.number: response.sent for response in responses if response.is_update}
    newest = position = 0
    for response in sorted(responses, key=lambda response: response.sent):
        while position < len(completed) and completed[position].completed < response.sent:
            newest = max(newest, completed[position].number)
            position += 1
        if response.number < newest + response.is_update:
            findings.add(
                "out of order", f"{response.request_id} is revision {response.number} after {newest}"
            )
        if made.get(response.number, -_NEVER) > response.completed:
            findings.add("before it was sent", response.request_id)
