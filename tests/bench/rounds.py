"""The rounds: who is put under which load, in which order, and what is kept of it."""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass

from tests.bench.contenders import Contender, Pgbench
from tests.bench.load import Load
from tests.bench.measure import Cost, measured, memory
from tests.bench.requests import Task

KEPT_CONNECTIONS = 32
CLIENTS_OF_OVERLOAD = 512
LATENCY_CONNECTIONS = (1, 8, 32, 128, 512)
# Seconds within which a contender must respond to each scenario for the first time.
_WARM_UPS = 5


@dataclass(frozen=True, kw_only=True)
class Sample(Task):
    """One run.  Memory is in MB."""

    part: str
    round: int
    contender: str
    is_bare: bool
    load: Load
    cost: Cost
    rss: float
    pss: float
    longest_slice_ms: float | None = None

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
class Plan:
    """What is to be measured, and for how long; *again* is how often a disturbed run is repeated."""

    rounds: int
    seconds: int
    parts: list[str]
    scenarios: list[str]
    connections: int
    latency_connections: list[int]
    again: int
    fails: bool = False  # as it does where the verifier hangs


class Rounds:
    """Runs a plan.  `samples` has what was measured so far, also when it is broken off."""

    def __init__(self, plan: Plan, contenders: list[Contender], postgres: int | None) -> None:
        self.plan = plan
        self.samples: list[Sample] = []
        self._contenders = [each for each in contenders if not each.slices]
        self._with_slices = [each for each in contenders if each.slices]
        self._postgres = postgres
        self._round = 0

    def run(self) -> None:
        """Measure every part in every round."""
        self._warm_up()
        parts = {
            "throughput": self._throughput,
            "latency": self._latency,
            "overload": self._overload,
            "slices": self._slices,
        }
        for number in range(1, self.plan.rounds + 1):
            self._round = number
            for part in self.plan.parts:
                parts[part]()

    def _in_turn(self, contenders: Iterable[Contender]) -> Iterator[Contender]:
        """Yield contenders, in each round another one first, so that none always follows the same one."""
        waiting = list(contenders)
        first = (self._round - 1) % max(len(waiting), 1)
        yield from waiting[first:] + waiting[:first]

    def _task(self, scenario: str, connections: int, **more: float) -> Task:
        return Task(scenario=scenario, connections=connections, seconds=self.plan.seconds, **more)

    def _warm_up(self) -> None:
        for contender in self._contenders + self._with_slices:
            for scenario in ["get"] if contender.is_bare else self.plan.scenarios:
                task = Task(scenario=scenario, connections=self.plan.connections, seconds=1)
                if self.plan.fails:
                    contender.run(task)
                elif not any(_is_sound(contender.run(task)) for _ in range(_WARM_UPS)):
                    raise RuntimeError(f"{contender.name} does not serve {scenario} without errors")

    def _throughput(self) -> None:
        """Bare Falcon has one response for every scenario, and is measured once a round."""
        for contender in self._in_turn(each for each in self._contenders if each.is_bare):
            self._take("throughput", contender, self._task("get", self.plan.connections))
        for scenario in self.plan.scenarios:
            for contender in self._in_turn(each for each in self._contenders if not each.is_bare):
                self._take("throughput", contender, self._task(scenario, self.plan.connections))

    def _latency(self) -> None:
        for connections in self.plan.latency_connections:
            for contender in self._in_turn(self._contenders):
                if not isinstance(contender, Pgbench):
                    for close in (False, True):
                        self._take("latency", contender, self._task("get", connections, close=close))
                elif connections <= KEPT_CONNECTIONS:
                    # PostgreSQL takes no more than a hundred connections, the service's own among them.
                    self._take("latency", contender, self._task("get", connections))

    def _overload(self) -> None:
        scenario = "mixed" if "mixed" in self.plan.scenarios else self.plan.scenarios[0]
        services = [each for each in self._contenders if not each.is_bare and not isinstance(each, Pgbench)]
        for close in (False, True):
            for contender in self._in_turn(services):
                task = self._task(scenario, self.plan.connections, close=close)
                served = self._take("overload", contender, task).load.rate
                task = self._task(scenario, CLIENTS_OF_OVERLOAD, close=close, offered=2 * served)
                self._take("overload", contender, task)

    def _slices(self) -> None:
        for scenario in self.plan.scenarios:
            for contender in self._in_turn(self._with_slices):
                self._take("slices", contender, self._task(scenario, self.plan.connections))

    def _take(self, part: str, contender: Contender, task: Task) -> Sample:
        """Measure, again if the machine was busy with something else, and keep the calmest run."""
        runs = [self._measure(part, contender, task)]
        while runs[-1].cost.disturbed and len(runs) <= self.plan.again:
            runs.append(self._measure(part, contender, task))
        calmest = min(runs, key=lambda sample: sample.cost.noise)
        self.samples.append(calmest)
        _tell(calmest)
        return calmest

    def _measure(self, part: str, contender: Contender, task: Task) -> Sample:
        slices = contender.slices
        if slices:
            slices.longest_ms()  # until now
        with measured(contender.pid, self._postgres, contender.helpers) as cost:
            load = contender.run(task)
        rss, pss = memory(contender.pid) if contender.pid else (0.0, 0.0)
        return Sample(
            **asdict(task),
            part=part,
            round=self._round,
            contender=contender.name,
            is_bare=contender.is_bare,
            load=load,
            cost=cost,
            rss=rss,
            pss=pss,
            longest_slice_ms=slices.longest_ms() if slices else None,
        )


def _is_sound(load: Load) -> bool:
    return load.requests > 0 and not load.errors


def _tell(sample: Sample) -> None:
    words = [
        f"{sample.part} {sample.round}: {sample.contender} {sample.scenario}, {sample.connections}",
        *(["new"] if sample.close else ["kept"]),
        *([f"offering {sample.offered:.0f}/s"] if sample.offered else []),
        "{:.0f}/s, CPU {:.0f} + {:.0f} µs".format(sample.load.rate, *sample.processor_us),
        f"p50 {sample.load.p50:.2f} ms, p99 {sample.load.p99:.2f} ms",
        *([f"longest slice {sample.longest_slice_ms:.1f} ms"] if sample.longest_slice_ms else []),
        *([f"{sample.load.errors} ERRORS"] if sample.load.errors else []),
        *([f"DISTURBED by {sample.cost.noise:.0%} of the machine"] if sample.cost.disturbed else []),
    ]
    print(", ".join(words), file=sys.stderr, flush=True)
