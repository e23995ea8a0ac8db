"""The audit of a range of managers, with everything that is theirs.

Three streams in the order of (manager_id, stack_id) are read side by side: memory does not grow with the
tables.  A range is a transaction of its own, so that no snapshot is held for long.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from stackmgr.access.verifiers import is_identity_id
from stackmgr.database import statements
from stackmgr.operate.audit.rules import Fault, RevisionAudit, StoredRevision, current_faults, receipt_faults
from stackmgr.operate.connection import Reader, ReaderConnection, reader_transaction

_MANAGERS = statements.load("audit_managers")
_STACKS = statements.load("audit_stacks")
_REVISIONS = statements.load("audit_revisions")
_RECEIPTS = statements.load("audit_receipts")

_MANAGERS_AT_A_TIME = 200
_STACKS_OF_A_PART = 1000
_NO_MANAGER = "belongs to no manager: it is being erased, or 'stackmgr managers erase' must run again"

Key = tuple[str, str]
_END: Key = ("~", "~")  # after every UUID


@dataclass(frozen=True, slots=True)
class Range:
    """The managers after the first id up to the last one; without an end, all that follow."""

    after: str | None
    last: str | None


@dataclass(frozen=True, slots=True)
class Rules:
    """What depends on the deployment: the listed tokens, and whether revisions were archived."""

    listed: frozenset[str]
    archived: bool


@dataclass(slots=True)
class Part:
    """What a part of a range has: counts, and findings as kind, manager, stack and text."""

    stacks: int = 0
    revisions: int = 0
    receipts: int = 0
    findings: list[tuple[str, str, str, str]] = field(default_factory=list)


class _Stream:
    """Rows in the order of their first two columns, a manager's id and a stack's, with the next one known."""

    def __init__(self, rows: Iterator[tuple[Any, ...]]) -> None:
        self._rows = rows
        self._row = next(rows, None)

    @property
    def key(self) -> Key:
        return _END if self._row is None else self._row[:2]

    def take(self, key: Key) -> Iterator[tuple[Any, ...]]:
        """Yield the other columns of the rows of *key*."""
        while self._row is not None and self.key == key:
            yield self._row[2:]
            self._row = next(self._rows, None)


def ranges(connection: ReaderConnection, after: str | None) -> Iterator[Range]:
    """Yield the ranges of all managers after one.  The last is open: rows without a manager may follow."""
    while True:
        parameters = {"after": after, "last": None, "row_limit": _MANAGERS_AT_A_TIME}
        with reader_transaction(connection) as reader:
            managers = reader.rows(_MANAGERS, parameters)
        last = managers[-1][0] if len(managers) == _MANAGERS_AT_A_TIME else None
        yield Range(after, last)
        if last is None:
            return
        after = last


def audit_range(connection: ReaderConnection, managers: Range, rules: Rules) -> Iterator[Part]:
    """Audit *managers* in one transaction, and yield what it has, some stacks at a time."""
    with reader_transaction(connection) as reader:
        audit = _RangeAudit(rules)
        for _ in audit.read(reader, {"after": managers.after, "last": managers.last}):
            if max(audit.part.stacks, len(audit.part.findings)) >= _STACKS_OF_A_PART:
                yield audit.part
                audit.part = Part()
    yield audit.part


class _RangeAudit:
    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self.part = Part()

    def read(self, reader: Reader, bounds: dict[str, str | None]) -> Iterator[None]:
        """Read the range of *bounds* into `part`; yield after each stack."""
        known = set()
        for manager_id, identity_id in reader.rows(_MANAGERS, bounds | {"row_limit": None}):
            known.add(manager_id)
            if not is_identity_id(identity_id):
                self._find("manager_rule", (manager_id, ""), "identity id is not 1 to 255 printable")
        stacks, revisions, receipts = (
            _Stream(reader.iterate(statement, bounds)) for statement in (_STACKS, _REVISIONS, _RECEIPTS)
        )
        while (key := min(stacks.key, revisions.key, receipts.key)) != _END:
            for kind, text in self._faults(key, stacks, revisions, receipts):
                self._find(kind, key, text)
            if key[0] not in known:
                self._find("no_manager", key, _NO_MANAGER)
            yield

    def _find(self, kind: str, key: Key, text: str) -> None:
        self.part.findings.append((kind, *key, text))

    def _faults(self, key: Key, stacks: _Stream, revisions: _Stream, receipts: _Stream) -> Iterator[Fault]:
        history = RevisionAudit(archived=self._rules.archived)
        for revision in revisions.take(key):
            self.part.revisions += 1
            yield from history.take(StoredRevision(*revision))
        digests = [digest for (digest,) in receipts.take(key)]
        self.part.receipts += len(digests)
        current = [StoredRevision(*row) for row in stacks.take(key)]
        self.part.stacks += len(current)
        for row in current:
            yield from current_faults(row, history, self._rules.listed)
            yield from receipt_faults(digests, history.first)
        if current:
            return
        if history.last is not None:
            yield "no_stack", f"revision {history.last.revision_number} belongs to no stack"
        if digests:
            yield "no_stack", "a creation receipt belongs to no stack"
