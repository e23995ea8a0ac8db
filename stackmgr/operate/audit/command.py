"""`stackmgr audit`: every stack, revision and receipt against the published rules and against each other.

Managers are taken some at a time, so that a later run can continue after the last of them.
"""

import argparse
import sys
from collections.abc import Iterator
from contextlib import closing
from uuid import UUID

from stackmgr.database import statements
from stackmgr.errors import CommandError
from stackmgr.operate.arguments import canonical_uuid, whole_number
from stackmgr.operate.audit.jobs import in_processes, in_this_process
from stackmgr.operate.audit.ranges import Range, Rules, ranges
from stackmgr.operate.audit.report import Report
from stackmgr.operate.command import (
    FOUND,
    NEEDS_READER,
    TOKENS_AND_DATABASE,
    Command,
    argument,
    database_url,
)
from stackmgr.operate.connection import (
    NO_SCHEMA,
    ReaderConnection,
    reader_connection,
    reader_transaction,
)
from stackmgr.operate.managers import find
from stackmgr.operate.output import print_note
from stackmgr.operate.progress import Progress
from stackmgr.stacks import whitelist

_ESTIMATE = statements.load("audit_estimate")

_MOST_JOBS = 64


class Audit:
    """One run.  `done` is the last manager up to which all rows were read, if there is one."""

    def __init__(self, report: Report, rules: Rules, after: str | None) -> None:
        self._report, self._rules = report, rules
        self._unfinished: dict[Range, bool] = {}
        self.done = after

    def run(self, url: str, jobs: int) -> None:
        """Audit all managers after `done`.  Raises CommandError."""
        with reader_connection(url) as connection:
            if self.done is not None:
                self.done = _manager_id(connection, self.done)
            self._report.begin(_estimate(connection, self.done))
            todo = self._todo(connection)
            results = (
                in_this_process(connection, todo, self._rules)
                if jobs == 1
                else in_processes(url, todo, self._rules, jobs)
            )
            with closing(results):
                for managers, part in results:
                    if part is None:
                        self._finish(managers)
                    else:
                        self._report.take(part)

    def _todo(self, connection: ReaderConnection) -> Iterator[Range]:
        for managers in ranges(connection, self.done):
            self._unfinished[managers] = True
            yield managers

    def _finish(self, managers: Range) -> None:
        self._unfinished[managers] = False
        while self._unfinished and not self._unfinished[first := next(iter(self._unfinished))]:
            del self._unfinished[first]
            self.done = first.last


def _manager_id(connection: ReaderConnection, any_id: str) -> str:
    """Return the manager id of the manager that *any_id* names; without one it is a manager id itself."""
    with reader_transaction(connection) as reader:
        found = find(reader, any_id)
    return any_id if found is None else found.manager_id


def _estimate(connection: ReaderConnection, after: str | None) -> int:
    """Return about how many stacks the managers after one have, by their random ids.  Raises CommandError."""
    with reader_transaction(connection) as reader:
        rows = reader.rows(_ESTIMATE, {})
    if not rows:
        raise CommandError(NO_SCHEMA)
    share = 1.0 if after is None else 1 - UUID(after).int / 2**128
    return int(rows[0][0] * share)


def _audit(arguments: argparse.Namespace) -> None:
    rules = Rules(frozenset(whitelist.load_configured().tokens), arguments.archived)
    with Progress("stacks") as progress:
        report = Report(progress, as_json=arguments.json)
        audit = Audit(report, rules, arguments.after)
        try:
            audit.run(database_url(), arguments.jobs)
        except (CommandError, KeyboardInterrupt) as ex:
            if report.has_begun:
                report.end()
                if audit.done is not None:
                    print_note(f"Not complete. To continue: stackmgr audit --after {audit.done}")
            raise CommandError(str(ex) or "interrupted") from ex
        report.end()
    if report.findings:
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
            "--jobs",
            type=whole_number(1, _MOST_JOBS),
            default=1,
            metavar="N",
            help="processes, each with a connection of its own (default 1)",
        ),
        argument(
            "--archived",
            action="store_true",
            help="revisions between the first and later ones may be missing",
        ),
    ],
)
