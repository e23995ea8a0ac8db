"""What the samples come to: medians over the rounds, ratios within each round, as JSON, tables and a plot."""

import json
import os
import platform
import statistics
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from tests.bench import plot
from tests.bench.rounds import Plan, Sample

# The contender that others are compared with, and bare Falcon by the class of its workers.
OURS = "stackmgr"
FALCONS = {"falcon-gthread": "gthread", "falcon-worker": "stackmgr.server.worker.Worker"}
_NOTHING = "-"
Value = Callable[[Sample], float]


def calm(samples: list[Sample]) -> list[Sample]:
    """Return the samples that were not disturbed, or all where there are no others."""
    return [sample for sample in samples if not sample.cost.disturbed] or samples


def select(samples: list[Sample], **wanted: object) -> list[Sample]:
    """Return the samples that are as *wanted*."""
    return [s for s in samples if all(getattr(s, name) == value for name, value in wanted.items())]


def groups(samples: list[Sample], *names: str) -> dict[tuple, list[Sample]]:
    """Return the samples by the values of these attributes."""
    found: dict[tuple, list[Sample]] = {}
    for sample in samples:
        found.setdefault(tuple(getattr(sample, name) for name in names), []).append(sample)
    return found


def median(samples: list[Sample], value: Value) -> float:
    """Return the median of a value."""
    return statistics.median(map(value, calm(samples)))


def ratio(mine: list[Sample], others: list[Sample], value: Value) -> float | None:
    """Return the median of the rounds' ratios, or None where no round has both."""
    by_round = {sample.round: value(sample) for sample in calm(others)}
    ratios = [value(sample) / by_round[sample.round] for sample in calm(mine) if by_round.get(sample.round)]
    return statistics.median(ratios) if ratios else None


def rate(sample: Sample) -> float:
    """Responses a second."""
    return sample.load.rate


def p50(sample: Sample) -> float:
    """The median latency in milliseconds."""
    return sample.load.p50


def p99(sample: Sample) -> float:
    """The latency that one request in a hundred exceeds, in milliseconds."""
    return sample.load.p99


def _service_cpu(sample: Sample) -> float:
    return sample.processor_us[0]


def _postgres_cpu(sample: Sample) -> float:
    return sample.processor_us[1]


def _spread(samples: list[Sample]) -> str:
    rates = sorted(map(rate, calm(samples)))
    return f"±{(rates[-1] - rates[0]) / 2 / statistics.median(rates):.0%}"


def _show(number: float | None, form: str = ".2f") -> str:
    return _NOTHING if number is None else format(number, form)


def _reliability(samples: list[Sample]) -> tuple[str, str]:
    """Return the last two cells of every row: errors of all rounds, and how many rounds were disturbed."""
    disturbed = sum(sample.cost.disturbed for sample in samples)
    return str(sum(sample.load.errors for sample in samples)), f"{disturbed} of {len(samples)}"


def _table(headings: list[str], rows: list[list[str]]) -> str:
    headings = [*headings, "errors", "disturbed"]
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def throughput(part: list[Sample]) -> str:
    """Return the table of the throughput part."""
    rows = []
    for (is_bare, scenario, contender), mine in groups(part, "is_bare", "scenario", "contender").items():
        alike = select(part, scenario=scenario)
        against = [OURS, "pgbench"] if not is_bare else [None, None]
        has_processes = mine[0].rss > 0
        has_postgres = any(sample.cost.postgres for sample in mine) and not is_bare
        rows.append(
            [
                *("any" if is_bare else scenario, contender, _show(median(mine, rate), ".0f"), _spread(mine)),
                _show(median(mine, _service_cpu) if has_processes else None, ".0f"),
                _show(median(mine, _postgres_cpu) if has_postgres else None, ".0f"),
                *(_show(ratio(mine, select(alike, contender=name), rate)) for name in against),
                *(_show(ratio(mine, select(part, contender=name), rate)) for name in FALCONS),
                *(_show(median(mine, p50)), _show(median(mine, p99))),
                _show(median(mine, lambda sample: sample.rss) if has_processes else None, ".0f"),
                _show(median(mine, lambda sample: sample.pss) if has_processes else None, ".0f"),
                *_reliability(mine),
            ]
        )
    headings = [
        *("scenario", "contender", "requests/s", "spread", "CPU µs service", "CPU µs PostgreSQL"),
        *("/ stackmgr", "/ pgbench", "/ gthread", "/ worker", "p50 ms", "p99 ms"),
        *("RSS MB", "PSS MB"),
    ]
    return _table(headings, rows)


def latency(part: list[Sample]) -> str:
    """Return the table of the latency part."""
    rows = []
    for (contender, close, connections), mine in sorted(
        groups(part, "contender", "close", "connections").items()
    ):
        alone = select(part, contender="pgbench", connections=connections)
        rows.append(
            [
                *(contender, "new" if close else "kept", str(connections)),
                *(_show(median(mine, p50), ".3f"), _show(median(mine, p99))),
                *(_show(ratio(mine, alone, p50)), _show(median(mine, rate), ".0f"), *_reliability(mine)),
            ]
        )
    return _table(
        ["contender", "connections", "number", "p50 ms", "p99 ms", "p50 / pgbench", "requests/s"], rows
    )


def overload(part: list[Sample]) -> str:
    """Return the table of the overload part."""
    rows = []
    for (contender, scenario, close), samples in groups(part, "contender", "scenario", "close").items():
        before = [sample for sample in samples if not sample.offered]
        mine = [sample for sample in samples if sample.offered]
        if not mine:
            continue
        rows.append(
            [
                *(contender, scenario, "new" if close else "kept"),
                *(_show(median(before, rate), ".0f"), _show(median(before, p99))),
                *(_show(median(mine, lambda s: s.offered), ".0f"), _show(median(mine, rate), ".0f")),
                _show(ratio(mine, before, rate)),
                *(_show(median(mine, p50)), _show(median(mine, p99)), *_reliability(mine)),
            ]
        )
    headings = ["contender", "scenario", "connections", "it can serve", "p99 ms then", "offered", "served"]
    return _table([*headings, "served / can", "p50 ms", "p99 ms"], rows)


def slices(part: list[Sample]) -> str:
    """Return the table of the slices part."""
    rows = []
    for (scenario, contender), mine in groups(part, "scenario", "contender").items():
        longest = max(sample.longest_slice_ms or 0.0 for sample in mine)
        requests = sum(sample.load.requests for sample in mine)
        rows.append([scenario, contender, str(requests), _show(longest, ".1f"), *_reliability(mine)])
    return _table(["scenario", "contender", "requests", "longest slice ms"], rows)


_TABLES = {"throughput": throughput, "latency": latency, "overload": overload, "slices": slices}


def _machine() -> dict[str, object]:
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "kernel": platform.release(),
    }


def write(folder: Path, plan: Plan, samples: list[Sample]) -> str:
    """Write results, tables and plot to *folder*, and return the tables."""
    folder.mkdir(parents=True, exist_ok=True)
    document = {"machine": _machine(), "plan": asdict(plan), "samples": [s.as_dict() for s in samples]}
    (folder / "results.json").write_text(json.dumps(document, indent=1) + "\n")
    parts = {part: found for part in _TABLES if (found := select(samples, part=part))}
    text = "\n\n".join(f"### {part}\n\n{_TABLES[part](found)}" for part, found in parts.items())
    (folder / "results.md").write_text(text + "\n")
    bars = groups(parts.get("throughput", []), "scenario", "contender", "is_bare")
    lines = groups(parts.get("latency", []), "contender", "close", "connections")
    drawing = plot.drawing(
        {
            ("any" if bare else scenario, who): median(mine, rate)
            for (scenario, who, bare), mine in bars.items()
        },
        {key: (median(mine, p50), median(mine, p99)) for key, mine in lines.items()},
    )
    (folder / "results.svg").write_text(drawing)
    return text
