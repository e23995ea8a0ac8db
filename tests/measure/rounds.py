"""The rounds: which service is put under which load, in which order, and what is kept of it."""

import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from tests.measure.cost import Cost, measured, resident_mb
from tests.measure.load import Load
from tests.measure.services import MeasuredService

# Runs of a second within which a service must respond to each scenario without an error for the first time.
_WARM_UPS = 5


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One run."""

    scenario: str
    service: str
    round: int
    load: Load
    cost: Cost
    rss_mb: float

    @property
    def processor_us(self) -> tuple[float, float]:
        """Processor time of a request in microseconds: of the service, and of PostgreSQL."""
        requests = max(self.load.requests, 1)
        return self.cost.service / requests * 1e6, self.cost.postgres / requests * 1e6

    def as_dict(self) -> dict[str, object]:
        """Return it for a JSON document."""
        derived = {"rate": self.load.rate, "processor_us": self.processor_us}
        return asdict(self) | derived | {"disturbed": self.cost.disturbed}


@dataclass(frozen=True)
class RoundPlan:
    """What is to be measured, and for how long; *again* is how often a disturbed run is repeated."""

    rounds: int
    seconds: int
    scenarios: list[str]
    connections: int
    again: int
    fails: bool = False  # as it does where the verifier hangs


def warm_up(plan: RoundPlan, subjects: list[MeasuredService]) -> None:
    """Require that each service responds to each scenario without errors."""
    for subject in subjects:
        for scenario in plan.scenarios:
            runs = (subject.run(scenario, plan.connections, 1) for _ in range(_WARM_UPS))
            if not any(plan.fails or (run.requests and not run.errors) for run in runs):
                raise RuntimeError(f"{subject.name} does not serve {scenario} without errors")


def run(plan: RoundPlan, subjects: list[MeasuredService], postgres: int | None) -> Iterator[Sample]:
    """Yield the samples of every round; in each another service is the first."""
    for number in range(1, plan.rounds + 1):
        first = (number - 1) % len(subjects)
        for scenario in plan.scenarios:
            for subject in subjects[first:] + subjects[:first]:
                sample = _calmest(plan, subject, scenario, number, postgres)
                _report(sample)
                yield sample


def _calmest(
    plan: RoundPlan, subject: MeasuredService, scenario: str, number: int, postgres: int | None
) -> Sample:
    """Measure, again if the machine was busy with something else, and return the calmest run."""
    runs: list[Sample] = []
    while not runs or (runs[-1].cost.disturbed and len(runs) <= plan.again):
        with measured(subject.service.pid, postgres, subject.helpers) as cost:
            load = subject.run(scenario, plan.connections, plan.seconds)
        rss = resident_mb(subject.service.pid)
        runs.append(
            Sample(scenario=scenario, service=subject.name, round=number, load=load, cost=cost, rss_mb=rss)
        )
    return min(runs, key=lambda sample: sample.cost.noise)


def _report(sample: Sample) -> None:
    words = [
        f"{sample.round}: {sample.service} {sample.scenario}",
        "{:.0f}/s, CPU {:.0f} + {:.0f} µs".format(sample.load.rate, *sample.processor_us),
        f"p50 {sample.load.p50:.2f} ms, p99 {sample.load.p99:.2f} ms",
        *([f"{sample.load.errors} ERRORS"] if sample.load.errors else []),
        *([f"DISTURBED by {sample.cost.noise:.0%} of the machine"] if sample.cost.disturbed else []),
    ]
    print(", ".join(words), file=sys.stderr, flush=True)
