"""The rounds: who is put under which load, in which order, and what is kept of it."""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass

from tests.bench.contenders import Contender, Pgbench
from tests.bench.load import Load
from tests.bench.measure import Cost, measured, memory

KEPT_CONNECTIONS = 32
CLIENTS_OF_OVERLOAD = 512
LATENCY_CONNECTIONS = (1, 8, 32, 128, 512)
# Not a scenario but a ceiling: the same whatever the service is asked for.
BARE = "bare"


@dataclass(frozen=True)
class Sample:
    """One run.  Times of CPU are seconds, those of latency milliseconds, memory is MB."""

    part: str
    round: int
    contender: str
    scenario: str
    connections: int
    close: bool
    offered: float
    load: Load
    cost: Cost
    rss: float
    pss: float

    def as_dict(self) -> dict[str, object]:
        """Return it for a JSON document."""
        return asdict(self) | {"rate": self.load.rate, "disturbed": self.cost.disturbed}


@dataclass(frozen=True)
class Plan:
    """What is to be measured, and for how long."""

    rounds: int
    seconds: int
    parts: list[str]
    scenarios: list[str]
    connections: int
    latency_connections: list[int]
    again: int


class Rounds:
    """Runs a plan.  `samples` has what was measured so far, also when a run is broken off."""

    def __init__(self, plan: Plan, contenders: list[Contender], postgres: int | None) -> None:
        self.plan = plan
        self.contenders = contenders
        self.samples: list[Sample] = []
        self._postgres = postgres
        self._round = 0

    def run(self) -> None:
        """Measure every part in every round."""
        self._warm_up()
        parts = {"throughput": self._throughput, "latency": self._latency, "overload": self._overload}
        for self._round in range(1, self.plan.rounds + 1):
            for part in self.plan.parts:
                parts[part]()

    def _in_turn(self, contenders: Iterable[Contender]) -> Iterator[Contender]:
        """Yield contenders, in each round another one first: nobody always follows the same one."""
        waiting = list(contenders)
        first = self._round % len(waiting) if waiting else 0
        yield from waiting[first:] + waiting[:first]

    def _servers(self) -> list[Contender]:
        return [each for each in self.contenders if not isinstance(each, Pgbench)]

    def _services(self) -> list[Contender]:
        return [each for each in self._servers() if not each.is_bare]

    def _warm_up(self) -> None:
        for contender in self.contenders:
            for scenario in ["get"] if contender.is_bare else self.plan.scenarios:
                load = contender.run(scenario, connections=self.plan.connections, seconds=1)
                if load.errors or not load.requests:
                    raise RuntimeError(f"{contender.name}, {scenario}: {load}")

    def _throughput(self) -> None:
        for number, scenario in enumerate(self.plan.scenarios):
            for contender in self._in_turn(self.contenders):
                if not contender.is_bare:
                    self._take("throughput", contender, scenario, self.plan.connections)
                elif number == 0:
                    self._take("throughput", contender, BARE, self.plan.connections)

    def _latency(self) -> None:
        for connections in self.plan.latency_connections:
            for contender in self._in_turn(self.contenders):
                if isinstance(contender, Pgbench):
                    if connections <= KEPT_CONNECTIONS:
                        self._take("latency", contender, "get", connections)
                    continue
                for close in (False, True):
                    self._take("latency", contender, "get", connections, close=close)

    def _overload(self) -> None:
        scenario = "mixed" if "mixed" in self.plan.scenarios else self.plan.scenarios[0]
        for contender in self._in_turn(self._services()):
            served = self._take("overload", contender, scenario, self.plan.connections)
            offered = 2 * served.load.rate
            for close in (False, True):
                self._take("overload", contender, scenario, CLIENTS_OF_OVERLOAD, close=close, offered=offered)

    def _take(
        self,
        part: str,
        contender: Contender,
        scenario: str,
        connections: int,
        *,
        close: bool = False,
        offered: float = 0,
    ) -> Sample:
        """Measure, again if the machine was busy with something else, and keep the calmest run.

        *offered* is how often so many clients would ask in a second if they were answered at once.
        """
        kept: Sample | None = None
        for _ in range(1 + self.plan.again):
            with measured(contender.pid, self._postgres) as cost:
                load = contender.run(
                    "get" if scenario == BARE else scenario,
                    connections=connections,
                    seconds=self.plan.seconds,
                    close=close,
                    silence=connections / offered * 1000 if offered else 0,
                )
            rss, pss = memory(contender.pid) if contender.pid else (0.0, 0.0)
            taken = Sample(
                *(part, self._round, contender.name, scenario, connections, close, offered),
                *(load, cost, rss, pss),
            )
            if kept is None or _noise(cost) < _noise(kept.cost):
                kept = taken
            if not cost.disturbed:
                break
        self.samples.append(kept)
        _tell(kept)
        return kept


def _noise(cost: Cost) -> float:
    return cost.others + cost.steal


def _tell(sample: Sample) -> None:
    print(
        f"{sample.part} {sample.round}: {sample.contender} {sample.scenario} at {sample.connections}"
        f"{' new' if sample.close else ''}: {sample.load.rate:.0f}/s, p50 {sample.load.p50:.2f} ms,"
        f" p99 {sample.load.p99:.2f} ms, {sample.load.errors} errors"
        f"{f', DISTURBED by {_noise(sample.cost):.0%}' if sample.cost.disturbed else ''}",
        file=sys.stderr,
        flush=True,
    )
