"""What came of a cell: the recorded requests and probes, judged by its bound."""

import itertools
from collections import Counter
from dataclasses import dataclass, field

import psycopg

from tests.faults.cell import Bound, Cell
from tests.faults.prober import Probe
from tests.faults.stage import Evidence, secrets_in
from tests.support import history
from tests.support.history import Operation, Violation
from tests.support.workload import Workload

NEVER = float("inf")
# Seconds within which a response counts as full service.
_PROMPT = 1.0
# Statuses of a healthy service, which clients provoke themselves.
_ORDINARY = {200, 201, 404, 409}
_KINDS = ("500", "503", "cut", "refused")


@dataclass
class Report:
    """What came of a cell.  Times are in seconds."""

    name: str
    bound: Bound
    control: str = ""
    faults: int = 0
    acknowledged: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    violations: list[Violation] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    rejections: list[str] = field(default_factory=list)
    slowest: float = 0.0
    live: float = 0.0
    not_ready: float = 0.0
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
        measured = {
            "a response": (self.slowest, self.bound.slowest),
            "/live": (self.live, self.bound.live),
            "full service": (self.recovery, self.bound.recovery),
        }
        return self.rejections + [
            f"{what} took {seconds:.2f} s"
            for what, (seconds, bound) in measured.items()
            if bound is not None and seconds > bound
        ]


def judged(cell: Cell, evidence: Evidence, workload: Workload, probes: list[Probe]) -> Report:
    """Return what the recording, the probes and the database say, once all is still."""
    report = Report(cell.name, cell.bound, cell.control, len(evidence.faults))
    operations = workload.operations
    ours = {manager.external_id for manager in evidence.managers}
    with psycopg.connect(evidence.url) as connection:
        report.violations = history.check(operations, history.dump(connection, ours))
    report.acknowledged = sum(operation.acknowledged for operation in operations)
    responses = [operation for operation in operations if operation.status is not None]
    report.slowest = max((operation.completed - operation.sent for operation in responses), default=0.0)
    _judge_failures(report, operations)
    _judge_probes(report, probes, evidence.faults)
    report.recovery = _recovery(operations, probes, evidence.faults)
    if cell.trace and not any(cell.trace in log for log in evidence.logs):
        report.problems.append(f"no log has: {cell.trace}")
    report.problems += [
        f"{what} has come into a log" for what in secrets_in(evidence.logs, evidence.managers)
    ]
    return report


def failure(operation: Operation) -> str:
    """Return the kind of an operation's failure, or nothing."""
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
    live = [probe for probe in probes if probe.path == "/live"]
    report.live = max((probe.seconds for probe in live), default=0.0)
    unready = [probe for probe in probes if probe.path == "/ready" and probe.status != 200]
    report.not_ready = sum(probe.seconds + 0.05 for probe in unready)
    if report.bound.live is not None and any(probe.status != 200 for probe in live):
        report.problems.append(f"/live returned {sorted({probe.status for probe in live})}")
    if report.bound.ready == "stays" and unready:
        statuses = {probe.status for probe in unready}
        found = report.rejections if statuses == {503} else report.problems
        found.append(f"/ready returned {sorted(statuses)}")
    if probes and report.bound.ready == "fails":
        unnoticed = [
            began
            for began, ended in faults
            if not any(began <= probe.sent + probe.seconds and probe.sent <= ended for probe in unready)
        ]
        if unnoticed:
            report.problems.append(f"/ready did not report {len(unnoticed)} faults")


def _recovery(operations: list[Operation], probes: list[Probe], faults: list[tuple[float, float]]) -> float:
    """Return the longest time from the end of a fault to the last failure of what was sent after it."""
    longest = 0.0
    for (_, ended), (following, _) in itertools.pairwise([*faults, (NEVER, NEVER)]):
        after = [o for o in operations if o.sent > ended and min(o.completed, o.ended) < following]
        disturbed = [min(o.completed, o.ended) for o in after if failure(o) or o.completed - o.sent > _PROMPT]
        disturbed += [
            probe.sent + probe.seconds
            for probe in probes
            if probe.path == "/ready" and ended < probe.sent < following and probe.status != 200
        ]
        last = max(disturbed, default=ended)
        served = min((o.completed for o in after if o.acknowledged and o.completed > last), default=NEVER)
        longest = max(longest, (last if disturbed else served) - ended if served < NEVER else NEVER)
    return longest


@dataclass(frozen=True)
class Gap:
    """The seconds in which no write was acknowledged, and when in them a failover was complete."""

    seconds: float
    failover: float


def gaps(operations: list[Operation], faults: list[tuple[float, float]]) -> list[Gap]:
    """Return for each fault the longest time between two acknowledged writes that it has a part in."""
    times = sorted(o.completed for o in operations if o.writes and o.acknowledged)
    return [
        Gap(max(b - a for a, b in itertools.pairwise(times) if a <= ended and b >= began), ended - began)
        for began, ended in faults
    ]


HEADINGS = (
    *("cell", "bound", "faults", "acknowledged", "failed", "lost", "duplicated", "other violations"),
    *("slowest", "/live", "not ready", "full service", "verdict"),
)


def row(report: Report) -> tuple[str, ...]:
    """Return the report as one row under HEADINGS."""
    rules = Counter(violation.rule for violation in report.violations)
    lost, doubled = rules["R3"], rules["R2"] + rules["R6"]
    kinds = [*_KINDS, *sorted(set(report.failed) - set(_KINDS))]
    failed = ", ".join(f"{report.failed[kind]} {kind}" for kind in kinds if report.failed[kind])
    verdict = "fails" if report.contradictions() else "late" if report.delays() else "holds"
    return (
        report.name,
        str(report.bound),
        str(report.faults),
        str(report.acknowledged),
        failed or "0",
        *map(str, (lost, doubled, rules.total() - lost - doubled)),
        f"{report.slowest:.2f} s",
        f"{report.live * 1000:.0f} ms",
        f"{report.not_ready:.1f} s",
        f"{report.recovery:.2f} s",
        verdict,
    )
