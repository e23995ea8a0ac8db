"""`stackmgr audit`: every stack, revision and receipt against the published rules and against each other.

Three streams in the order of (manager_id, stack_id) are read side by side: memory does not grow with the
tables.  Managers are taken some at a time, each time in a transaction of its own, so that no snapshot is held
for long, and a later run can continue after the last of them.
"""

import argparse
import sys
from collections.abc import Iterator
from typing import Any

from stackmgr.access.verifiers import is_identity_id
from stackmgr.commands.arguments import canonical_uuid
from stackmgr.commands.audit.report import Counts, Report
from stackmgr.commands.audit.rules import Fault, RevisionAudit, StoredRevision, current_faults, receipt_faults
from stackmgr.commands.command import (
    FOUND,
    NEEDS_READER,
    TOKENS_AND_DATABASE,
    Command,
    argument,
    database_url,
)
from stackmgr.commands.output import print_note
from stackmgr.database import statements
from stackmgr.database.single_connection import Reader, reader_connection, reader_transaction
from stackmgr.errors import CommandError
from stackmgr.stacks import whitelist

_MANAGERS = statements.load("audit_managers")
_STACKS = statements.load("audit_stacks")
_REVISIONS = statements.load("audit_revisions")
_RECEIPTS = statements.load("audit_receipts")
_ESTIMATE = statements.load("audit_estimate")

_MANAGERS_AT_A_TIME = 200
_NO_MANAGER = "belongs to no manager: it is being erased, or 'stackmgr managers erase' must run again"

Key = tuple[str, str]
_END: Key = ("~", "~")  # after every UUID


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


class Audit:
    """One run.  `done` is the last manager whose rows were all read; None before the first and at the end."""

    def __init__(self, counts: Counts, report: Report, listed: frozenset[str], *, archived: bool) -> None:
        self._counts, self._report, self._listed, self._archived = counts, report, listed, archived
        self.done: str | None = None

    def next_managers(self, reader: Reader) -> bool:
        """Audit some managers, with everything that is theirs, and return whether there may be more."""
        parameters = {"after": self.done, "row_limit": _MANAGERS_AT_A_TIME}
        managers = reader.rows(_MANAGERS, parameters)
        for manager_id, identity_id in managers:
            if not is_identity_id(identity_id):
                self._report.finding("manager_rule", manager_id, "", "identity id is not 1 to 255 printable")
        # The last range is open, so that rows of managers who do not exist are read as well.
        last = managers[-1][0] if len(managers) == _MANAGERS_AT_A_TIME else None
        known = {manager_id for manager_id, _ in managers}
        self._read_range(reader, {"after": self.done, "last": last}, known)
        self.done = last
        return last is not None

    def _read_range(self, reader: Reader, bounds: dict[str, str | None], known: set[str]) -> None:
        stacks, revisions, receipts = (
            _Stream(reader.iterate(statement, bounds)) for statement in (_STACKS, _REVISIONS, _RECEIPTS)
        )
        while (key := min(stacks.key, revisions.key, receipts.key)) != _END:
            for kind, text in self._faults(key, stacks, revisions, receipts):
                self._report.finding(kind, *key, text)
            if key[0] not in known:
                self._report.finding("no_manager", *key, _NO_MANAGER)
            self._report.progress()

    def _faults(self, key: Key, stacks: _Stream, revisions: _Stream, receipts: _Stream) -> Iterator[Fault]:
        history = RevisionAudit(archived=self._archived)
        for revision in revisions.take(key):
            self._counts.revisions += 1
            yield from history.take(StoredRevision(*revision))
        digests = [digest for (digest,) in receipts.take(key)]
        self._counts.receipts += len(digests)
        current = [StoredRevision(*row) for row in stacks.take(key)]
        self._counts.stacks += len(current)
        for row in current:
            yield from current_faults(row, history, self._listed)
            yield from receipt_faults(digests, history.first)
        if current:
            return
        if history.last is not None:
            yield "no_stack", f"revision {history.last.revision_number} belongs to no stack"
        if digests:
            yield "no_stack", "a creation receipt belongs to no stack"


def _run(audit: Audit, counts: Counts) -> None:
    with reader_connection(database_url()) as connection:
        with reader_transaction(connection) as reader:
            [(counts.estimate,)] = reader.rows(_ESTIMATE, {})
        more = True
        while more:
            with reader_transaction(connection) as reader:
                more = audit.next_managers(reader)


def _audit(arguments: argparse.Namespace) -> None:
    counts = Counts()
    listed = frozenset(whitelist.load_configured().tokens)
    report = Report(counts, as_json=arguments.json)
    audit = Audit(counts, report, listed, archived=arguments.archived)
    audit.done = arguments.after
    try:
        _run(audit, counts)
    except (CommandError, KeyboardInterrupt) as ex:
        report.end()
        if audit.done is not None:
            print_note(f"Not complete. To continue: stackmgr audit --after {audit.done}")
        raise CommandError(str(ex) or "interrupted") from ex
    report.end()
    if counts.findings:
        sys.exit(FOUND)


COMMAND = Command(
    name="audit",
    summary="check every stored row against the rules, and the tables against each other",
    description="Check every stack, revision and receipt: names, allocations and presets against the "
    "published rules, tokens against the list that STACKMGR_TOKENS names, the current row against its "
    "last revision, revision numbers for gaps, receipts against stacks, and the digest of each receipt "
    f"against revision 1. Prints one line for each finding. {NEEDS_READER}",
    reads=TOKENS_AND_DATABASE,
    found="something is wrong",
    run=_audit,
    arguments=[
        argument(
            "--after",
            type=canonical_uuid,
            metavar="MANAGER_ID",
            help="continue an earlier run after this manager",
        ),
        argument(
            "--archived",
            action="store_true",
            help="revisions between the first and later ones may be missing",
        ),
    ],
)
