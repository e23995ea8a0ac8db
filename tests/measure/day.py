"""A shortened day of creates on a server with lowered freeze ages: `python -m tests.measure.day --help`.

In a day at 200 creates a second, autovacuum visits each append-only table 17 times, once for a million rows.
The run has as many visits: the number of rows between two is lowered in proportion to the creates of the run.
A day's 17.28 million transactions are 9 % of what a vacuum against wraparound waits for.  Freeze ages are
lowered to the least that PostgreSQL allows, 1/2000 of the defaults (multixacts: 1/40,000), so 20 minutes have
2.4 of these vacuums for each table that nothing else freezes, as many as 28 days.  The limit of an age, 2^31,
is lowered to the 240,000 transactions of 20 minutes: half of it is reached 100 s after such a vacuum is due.
The size of the tables, the rate and the cost limits of autovacuum are not scaled.
"""

import argparse
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg

from tests.measure import growth, load, requests
from tests.measure.cost import Cost, measured
from tests.measure.load import Load
from tests.measure.services import Checkout
from tests.support.memory import memory
from tests.support.postgres import FaultyPostgres
from tests.support.repeating import repeated
from tests.support.server import RunningService, running_service

_SETTINGS = {
    "autovacuum_freeze_max_age": 100_000,
    "vacuum_freeze_table_age": 75_000,
    "vacuum_freeze_min_age": 25_000,
    "autovacuum_multixact_freeze_max_age": 10_000,
    "vacuum_multixact_freeze_table_age": 3_750,
    "vacuum_multixact_freeze_min_age": 125,
    "autovacuum_naptime": "1s",  # 60 s by default; a visit is due each 70 s
    "log_autovacuum_min_duration": 0,
    "log_lock_waits": "on",
    "deadlock_timeout": "10ms",  # waits that are shorter are not logged
}
AGE_LIMITS = {"transactions": 240_000, "multixacts": 24_000}
_SLOWER = 1.2  # the last quarter of the run, beside the first
_ROWS_OF_A_DAY = 17_280_000
_ROWS_BETWEEN_VISITS = 1_000_000  # of stack_revisions and creation_receipts
_CONNECTIONS = 64
_MANAGERS = 4
_QUARTERS = 4
_SAMPLE_SECONDS = 0.2

_VISIT_AFTER = """
ALTER TABLE stackmgr.stack_revisions SET (autovacuum_vacuum_insert_threshold = {rows});
ALTER TABLE stackmgr.creation_receipts SET (autovacuum_vacuum_insert_threshold = {rows});
"""
_AGES = b"""
SELECT max(age(relfrozenxid)), max(mxid_age(relminmxid)) FROM pg_class WHERE relkind IN ('r', 'm', 't')
UNION ALL
SELECT max(age(datfrozenxid)), max(mxid_age(datminmxid)) FROM pg_database
"""
_VACUUM = re.compile(
    r"\[([0-9]+)\] LOG:  automatic (aggressive )?vacuum(?: to prevent wraparound)? of table"
    r" \"stackmgr\.(\S+)\":.*\n(?:\t.*\n)*\tsystem usage: .* elapsed: ([0-9.]+) s"
)
_LOCK_WAIT = re.compile(
    r"still waiting for (.*) after .*\n.*DETAIL:  Process(?:es)? holding the lock: ([0-9, ]+)\. "
)
_CANCELLED = "canceling autovacuum task"


@dataclass
class DayReport:
    """What came of a run: load and cost of each quarter, the greatest ages, and what the log has."""

    loads: list[Load] = field(default_factory=list)
    costs: list[Cost] = field(default_factory=list)
    ages: Counter[str] = field(default_factory=Counter)
    visits: Counter[str] = field(default_factory=Counter)
    aggressive: Counter[str] = field(default_factory=Counter)
    longest_seconds: float = 0.0
    lock_waits: Counter[str] = field(default_factory=Counter)
    blocking: list[str] = field(default_factory=list)

    def take_ages(self, connection: psycopg.Connection) -> None:
        for row in connection.execute(_AGES).fetchall():
            self.ages |= Counter(dict(zip(AGE_LIMITS, row, strict=True)))

    def read_log(self, log: str) -> None:
        workers = set()
        for pid, aggressive, table, seconds in _VACUUM.findall(log):
            workers.add(pid)
            self.visits[table] += 1
            self.aggressive[table] += bool(aggressive)
            self.longest_seconds = max(self.longest_seconds, float(seconds))
        for what, holders in _LOCK_WAIT.findall(log):
            self.lock_waits[re.sub("[0-9]+", "N", what)] += 1
            if workers & set(holders.split(", ")):
                self.blocking.append(f"a vacuum held {what}")
        self.blocking += [line for line in log.splitlines() if _CANCELLED in line]

    @property
    def slower(self) -> float:
        return self.loads[-1].p99 / self.loads[0].p99

    def lines(self) -> Iterator[str]:
        """Yield what was measured."""
        for number, (quarter, cost) in enumerate(zip(self.loads, self.costs, strict=True), 1):
            service, postgres = (1e6 * used / quarter.requests for used in (cost.service, cost.postgres))
            yield (
                f"quarter {number}: {quarter.requests} creates, {quarter.rate:.0f}/s,"
                f" p50 {quarter.p50:.2f} ms, p99 {quarter.p99:.2f} ms, {quarter.errors} errors;"
                f" CPU of a create {service:.0f} us in the service, {postgres:.0f} us in PostgreSQL;"
                f" {cost.noise:.0%} of the machine used by others"
            )
        yield f"p99, last quarter / first: {self.slower:.2f}"
        for kind, limit in AGE_LIMITS.items():
            yield f"greatest age in {kind}: {self.ages[kind]}, {self.ages[kind] / limit:.0%} of {limit}"
        for table, visits in sorted(self.visits.items()):
            yield f"vacuums of {table}: {visits}, aggressive {self.aggressive[table]}"
        yield f"longest vacuum: {self.longest_seconds:.1f} s"
        yield f"waits for locks of over 10 ms: {dict(self.lock_waits) or 0}"

    def problems(self) -> list[str]:
        """Return, in words, what exceeds its bound."""
        found = list(self.blocking)
        if errors := sum(quarter.errors for quarter in self.loads):
            found.append(f"{errors} requests failed")
        if any(self.ages[kind] > limit / 2 for kind, limit in AGE_LIMITS.items()):
            found.append("an age exceeds half of its limit")
        if self.slower > _SLOWER:
            found.append(f"p99 of the last quarter is {self.slower:.2f} of the first, over {_SLOWER}")
        return found


class _Server(FaultyPostgres):
    def settings(self) -> dict[str, Any]:
        return super().settings() | _SETTINGS


@contextmanager
def _staged(stacks: int, creates: float) -> Iterator[tuple[_Server, RunningService, Path]]:
    """Yield a server with so many stacks, the service on it, and the prepared requests."""
    with ExitStack() as undo:
        folder = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="stackmgr-day-")))
        server = undo.enter_context(_Server(folder / "data"))
        server.prepare()
        growth.fill(server.url(), stacks)
        with psycopg.connect(server.url(), autocommit=True) as connection:
            rows = max(1, round(_ROWS_BETWEEN_VISITS * creates / _ROWS_OF_A_DAY))
            connection.execute(_VISIT_AFTER.format(rows=rows).encode())
            connection.execute(b"VACUUM (FREEZE, ANALYZE)")
        managers = [Checkout().issue(server.url(), str(uuid4())) for _ in range(_MANAGERS)]
        prepared = requests.write_lua(folder / "requests.lua", "create", managers)
        url = server.ensure_service_login()
        yield server, undo.enter_context(running_service(url, env={"WEB_CONCURRENCY": "2"})), prepared


def run(minutes: float, rate: float, stacks: int) -> DayReport:
    """Create at *rate* a second, beside *stacks* that are there already, for so many minutes."""
    report = DayReport()
    seconds = max(1, round(minutes * 60 / _QUARTERS))
    with (
        _staged(stacks, _QUARTERS * seconds * rate) as (server, service, prepared),
        psycopg.connect(server.url(), autocommit=True) as connection,
        repeated(lambda: report.take_ages(connection), _SAMPLE_SECONDS),
    ):
        postmaster, already = server.processes()[0].pid, len(server.read_log())
        for _ in range(_QUARTERS):
            with measured(service.pid, postmaster) as cost:
                report.loads.append(load.wrk(service.port, prepared, _CONNECTIONS, seconds, rate))
            report.costs.append(cost)
        report.read_log(server.read_log()[already:])
    return report


def main() -> int:
    """Return the exit status: 0 when every bound holds."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.measure.day",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--rate", type=float, default=200, help="creates a second")
    parser.add_argument("--stacks", type=int, default=1_000_000, help="that are there before")
    parser.add_argument("--folder", default=memory(), help="of the data; by default in memory")
    arguments = parser.parse_args()
    tempfile.tempdir = arguments.folder
    report = run(arguments.minutes, arguments.rate, arguments.stacks)
    print(*report.lines(), sep="\n", flush=True)
    problems = report.problems()
    print(*problems, sep="\n", file=sys.stderr)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
