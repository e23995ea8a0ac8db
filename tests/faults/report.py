"""The result of a cell: the recorded requests and probes, judged by its bound."""

import itertools
from collections import Counter
from dataclasses import dataclass, field

import psycopg

from stackmgr.access import api_keys
from tests.faults.cell import Bound, Cell
from tests.faults.prober import Probe
from tests.faults.stage import Evidence
from tests.support import history
from tests.support.history import Operation, Violation
from tests.support.workload import KEY_CANARY, Workload

NEVER = float("inf")
# Seconds within which a response counts as full service.
_PROMPT = 1.0
# Statuses of a healthy service, which clients provoke themselves.
_ORDINARY = {200, 201, 404, 409}
HEADINGS = (*("cell", "bound", "faults", "acknowledged", "failed", "violations"),
    *("full service", "verdict"))  # fmt: skip


@dataclass
class Report:
    """The result of a cell.  Times are in seconds; `rejections` are problems of a slow machine too."""

    name: str
    bound: Bound
    control: str = ""
    faults: int = 0
    acknowledged: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    violations: list[Violation] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    rejections: list[str] = field(default_factory=list)
    recovery: float = 0.0

    def contradictions(self) -> list[str]:
        """Return, in words, what is wrong however slow the machine is.

        A control breaks a rule on purpose: it is wrong unless that is found.
        """
        found = list(self.problems)
        if not self.acknowledged:
            found.append("nothing was acknowledged: a cell without clients proves nothing")
        if self.control:
            if self.control not in {violation.rule for violation in self.violations}:
                found.append(f"{self.control} holds where it was broken: the control sees nothing")
            return found
        found += [f"{violation.rule}: {violation.what}" for violation in self.violations]
        if self.recovery == NEVER:
            found.append("full service did not return")
        return found

    def delays(self) -> list[str]:
        """Return, in words, what came too late: 503 too, where no bound names it, is a matter of time."""
        is_late = self.recovery > self.bound.recovery
        return self.rejections + [f"full service took {self.recovery:.2f} s"] * is_late

    def show(self) -> list[str]:
        rules = Counter(violation.rule for violation in self.violations)
        print_row(
            *(self.name, self.bound, self.faults, self.acknowledged, _listed(self.failed), _listed(rules)),
            f"{self.recovery:.2f} s",
            "fails" if self.contradictions() else "late" if self.delays() else "holds",
        )
        return self.contradictions() + self.delays()


def print_headings(*headings: str) -> None:
    print_row(*headings)
    print_row(*("---" for _ in headings))


def print_row(*cells: object) -> None:
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "0"


def judged(cell: Cell, evidence: Evidence, workload: Workload, probes: list[Probe]) -> Report:
    report = Report(cell.name, cell.bound, cell.control, len(evidence.faults))
    operations = workload.operations
    ours = {manager.external_id for manager in evidence.managers}
    with psycopg.connect(evidence.url) as connection:
        report.violations = history.check(operations, history.dump(connection, ours))
    report.acknowledged = sum(operation.acknowledged for operation in operations)
    _judge_failures(report, operations)
    _judge_probes(report, probes, evidence.faults)
    report.recovery = _recovery(operations, probes, evidence.faults)
    if cell.trace and not any(cell.trace in log for log in evidence.logs):
        report.problems.append(f"no log has: {cell.trace}")
    report.problems += _secrets_in(evidence)
    return report


def failure(operation: Operation) -> str:
    if operation.status is None:
        return "cut" if operation.reached else "refused"
    return "" if operation.status in _ORDINARY else str(operation.status)


def _judge_failures(report: Report, operations: list[Operation]) -> None:
    report.failed = Counter(filter(None, map(failure, operations)))
    bound, unexpected = report.bound, Counter(report.failed)
    for kind in bound.kinds.split():
        del unexpected[kind]
    if rejected := unexpected.pop("503", 0):
        report.rejections.append(f"{rejected} requests got 503")
    if unexpected:
        report.problems.append(f"failures that are not in the bound: {', '.join(sorted(unexpected))}")
    if bound.most is not None and report.failed.total() - rejected > bound.most * report.faults:
        report.problems.append(f"{report.failed.total()} requests failed")


def _judge_probes(report: Report, probes: list[Probe], faults: list[tuple[float, float]]) -> None:
    if "cut" in report.bound.kinds:  # a probe too
        probes = [probe for probe in probes if probe.status]
    dead = {probe.status for probe in probes if probe.path == "/live" and probe.status != 200}
    unready = [probe for probe in probes if probe.path == "/ready" and probe.status != 200]
    if dead:
        report.problems.append(f"/live returned {sorted(dead)}")
    if report.bound.ready == "stays" and unready:
        statuses = {probe.status for probe in unready}
        found = report.rejections if statuses == {503} else report.problems
        found.append(f"/ready returned {sorted(statuses)}")
    if probes and report.bound.ready == "fails":
        for began, ended in faults:
            if not any(began <= probe.completed and probe.sent <= ended for probe in unready):
                report.problems.append(f"/ready did not report the fault of {ended - began:.1f} s")


def _recovery(operations: list[Operation], probes: list[Probe], faults: list[tuple[float, float]]) -> float:
    """Return the longest time from the end of a fault to the last failure of what was sent after it."""
    longest = 0.0
    unready = [probe for probe in probes if probe.path == "/ready" and probe.status != 200]
    for (_, ended), (following, _) in itertools.pairwise([*faults, (NEVER, NEVER)]):
        after = [o for o in operations if o.sent > ended and min(o.completed, o.ended) < following]
        disturbed = [min(o.completed, o.ended) for o in after if failure(o) or o.completed - o.sent > _PROMPT]
        disturbed += [probe.completed for probe in unready if ended < probe.sent < following]
        last = max(disturbed, default=ended)
        served = min((o.completed for o in after if o.acknowledged and o.completed > last), default=NEVER)
        longest = max(longest, (last if disturbed else served) - ended if served < NEVER else NEVER)
    return longest


def _secrets_in(evidence: Evidence) -> list[str]:
    keys = [manager.api_key for manager in evidence.managers]
    secrets = {
        "an API key": keys, "the digest of an API key": [api_keys.digest(key).hex() for key in keys],
        "an Authorization": ["Bearer "], "an Idempotency-Key": [KEY_CANARY],
    }  # fmt: skip
    logs = "\n".join(evidence.logs)
    return [f"{what} has come into a log" for what, texts in secrets.items() if any(t in logs for t in texts)]
