"""Samples of each service in rounds; medians over the rounds, ratios within each, as JSON and a table."""

import json
import os
import platform
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from tests.measure.load import Cost, Load
from tests.support.releases import commit

OURS = "stackmgr"  # the service that others are compared with
_HEADINGS = (
    "scenario", "service", "requests/s", "spread", "CPU µs service", "CPU µs PostgreSQL", "rate / stackmgr",
    "CPU / stackmgr", "p50 ms", "p99 ms", "RSS MB", "errors", "disturbed",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Sample:
    scenario: str
    service: str
    round: int
    load: Load
    cost: Cost
    rss_mb: float

    def processor_us(self, used: float) -> float:
        return used / max(self.load.requests, 1) * 1e6

    def __str__(self) -> str:
        cpu = f"{self.processor_us(self.cost.service):.0f} + {self.processor_us(self.cost.postgres):.0f} µs"
        return (
            f"{self.round}: {self.service} {self.scenario}, {self.load.rate:.0f}/s, CPU {cpu},"
            f" p50 {self.load.p50:.2f} ms, p99 {self.load.p99:.2f} ms, {self.load.errors} errors,"
            f" {self.cost.noise:.0%} of the machine used by others"
        )


Value = Callable[[Sample], float]


def _calm(samples: list[Sample]) -> list[Sample]:
    return [sample for sample in samples if not sample.cost.disturbed] or samples


def median(samples: list[Sample], value: Value) -> float:
    return statistics.median(map(value, _calm(samples)))


def ratio(mine: list[Sample], others: list[Sample], value: Value) -> float:
    by_round = {sample.round: value(sample) for sample in _calm(others)}
    ratios = [value(sample) / by_round[sample.round] for sample in _calm(mine) if by_round.get(sample.round)]
    return statistics.median(ratios) if ratios else float("nan")


def rate(sample: Sample) -> float:
    return sample.load.rate


def _service_us(sample: Sample) -> float:
    return sample.processor_us(sample.cost.service)


def table(samples: list[Sample]) -> str:
    found: dict[tuple[str, str], list[Sample]] = defaultdict(list)
    for sample in samples:
        found[sample.scenario, sample.service].append(sample)
    rows: list[tuple[str, ...]] = [_HEADINGS, ("---",) * len(_HEADINGS)]
    for (scenario, service), mine in found.items():
        ours = found.get((scenario, OURS), [])
        rates = sorted(map(rate, _calm(mine)))
        rows.append((
            *(scenario, service, f"{median(mine, rate):.0f}"),
            f"±{(rates[-1] - rates[0]) / 2 / max(median(mine, rate), 1):.0%}",
            f"{median(mine, _service_us):.0f}",
            f"{median(mine, lambda sample: sample.processor_us(sample.cost.postgres)):.0f}",
            *(f"{ratio(mine, ours, value):.2f}" for value in (rate, _service_us)),
            f"{median(mine, lambda sample: sample.load.p50):.2f}",
            f"{median(mine, lambda sample: sample.load.p99):.2f}",
            f"{median(mine, lambda sample: sample.rss_mb):.0f}",
            str(sum(sample.load.errors for sample in mine)),
            f"{sum(sample.cost.disturbed for sample in mine)} of {len(mine)}",
        ))  # fmt: skip
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def chart(text: str) -> str:
    """Return a Mermaid chart of this service's rate beside others', by the *text* of results that have them.

    These are of a harness that measures other implementations of the same API in the same rounds.
    """
    document = json.loads(text)
    rates: dict[tuple[str, str], list[float]] = defaultdict(list)
    slow: dict[tuple[str, str], list[float]] = defaultdict(list)
    for run in document["runs"]:
        of = run["scenario"].replace("patch", "update"), run["contender"]
        rates[of].append(run["rps"])
        slow[of].append(run["p99_ms"])
    p99 = {of: f"{statistics.median(found):.0f}" for of, found in slow.items()}
    bars: dict[str, float] = {}
    for (scenario, service), found in sorted(rates.items(), key=lambda each: each[0][1]):
        if service != OURS:
            name = f"{scenario}, {service.removesuffix('-log').capitalize()}"
            label = f"{name} ({p99[scenario, OURS]}, {p99[scenario, service]})"
            pairs = zip(rates[scenario, OURS], found, strict=True)
            bars[label] = statistics.median(ours / theirs for ours, theirs in pairs)
    return f"""```mermaid
%% python -m tests.measure --chart, {document["when"][:10]}, {commit()}
%%{{init: {{"xyChart": {{"height": 300}}}}}}%%
xychart-beta horizontal
  title "Throughput of stackmgr (other service = 1), and p99 of both in ms"
  x-axis [{", ".join(f'"{name}"' for name in bars)}]
  y-axis 0 --> {max(*bars.values(), 2):.0f}
  bar [{", ".join(f"{value:.2f}" for value in bars.values())}]
```"""


def write(folder: Path, options: Mapping[str, object], samples: list[Sample]) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    machine = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"), "commit": commit(),
        "cores": os.cpu_count(), "python": platform.python_version(), "kernel": platform.release(),
    }  # fmt: skip
    document = {"machine": machine, "options": options, "samples": [asdict(sample) for sample in samples]}
    (folder / "results.json").write_text(json.dumps(document, indent=1, default=str) + "\n")
    text = table(samples)
    (folder / "results.md").write_text(text + "\n")
    return text
