"""What the samples come to: medians over the rounds, ratios within each round, as JSON and as tables."""

import json
import os
import platform
import statistics
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from tests.bench.rounds import BARE, Plan, Sample

_FALCONS = ("falcon-gthread", "falcon-worker")
_NOTHING = "–"


def chosen(samples: list[Sample], **wanted: object) -> list[Sample]:
    """Return the samples that are as *wanted*, without the disturbed ones unless there are no others."""
    found = [s for s in samples if all(getattr(s, name) == value for name, value in wanted.items())]
    return [s for s in found if not s.cost.disturbed] or found


def median(samples: list[Sample], value: Callable[[Sample], float]) -> float:
    """Return the median of a value."""
    return statistics.median(map(value, samples))


def ratio(mine: list[Sample], others: list[Sample], value: Callable[[Sample], float]) -> float | None:
    """Return the median of the rounds' ratios, or None where no round has both."""
    by_round = {sample.round: value(sample) for sample in others}
    ratios = [value(s) / by_round[s.round] for s in mine if by_round.get(s.round)]
    return statistics.median(ratios) if ratios else None


def _rate(sample: Sample) -> float:
    return sample.load.rate


def _p50(sample: Sample) -> float:
    return sample.load.p50


def _p99(sample: Sample) -> float:
    return sample.load.p99


def _spread(samples: list[Sample]) -> str:
    rates = sorted(map(_rate, samples))
    return f"±{(rates[-1] - rates[0]) / 2 / statistics.median(rates):.0%}"


def _show(number: float | None, form: str = ".2f") -> str:
    return _NOTHING if number is None else format(number, form)


def _table(headings: list[str], rows: list[list[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _notes(samples: list[Sample]) -> str:
    disturbed = sum(sample.cost.disturbed for sample in samples)
    return f"{disturbed} of {len(samples)}"


def _unique(samples: list[Sample], *names: str) -> list[tuple]:
    return list(dict.fromkeys(tuple(getattr(sample, name) for name in names) for sample in samples))


def throughput(samples: list[Sample]) -> str:
    """Return the table of the throughput part."""
    part = [sample for sample in samples if sample.part == "throughput"]
    first = part[0].contender if part else ""
    rows = []
    for scenario, contender in sorted(_unique(part, "scenario", "contender"), key=lambda pair: pair[0] == BARE):
        mine = chosen(part, scenario=scenario, contender=contender)

        def against(name: str, what: str, mine: list[Sample] = mine) -> str:
            return _show(ratio(mine, chosen(part, scenario=what, contender=name), _rate))

        def per_request(kind: str, mine: list[Sample] = mine) -> str:
            return _show(median(mine, lambda s: getattr(s.cost, kind) / s.load.requests * 1000), ".3f")

        has_memory = mine[0].rss > 0
        rows.append(
            [
                *(scenario, contender, _show(median(mine, _rate), ".0f"), _spread(mine)),
                against("stackmgr", scenario),
                against("pgbench", scenario),
                *(against(name, BARE) for name in _FALCONS),
                *(_show(median(mine, _p50)), _show(median(mine, _p99))),
                *(per_request("service") if has_memory else _NOTHING, per_request("postgres")),
                _show(median(mine, lambda s: s.rss), ".0f") if has_memory else _NOTHING,
                _show(median(mine, lambda s: s.pss), ".0f") if has_memory else _NOTHING,
                str(sum(s.load.errors for s in mine)),
                _notes([s for s in part if (s.scenario, s.contender) == (scenario, contender)]),
            ]
        )
    headings = [
        *("scenario", "contender", "requests/s", "spread", "/ stackmgr", "/ pgbench", "/ gthread", "/ worker"),
        *("p50 ms", "p99 ms", "CPU s/1000 service", "CPU s/1000 PostgreSQL", "RSS MB", "PSS MB"),
        *("errors", "disturbed"),
    ]
    return _table(headings, rows)


def latency(samples: list[Sample]) -> str:
    """Return the table of the latency part."""
    part = [sample for sample in samples if sample.part == "latency"]
    rows = []
    for contender, close, connections in _unique(part, "contender", "close", "connections"):
        mine = chosen(part, contender=contender, close=close, connections=connections)
        alone = chosen(part, contender="pgbench", connections=connections)
        rows.append(
            [
                *(contender, "new" if close else "kept", str(connections)),
                *(_show(median(mine, _p50), ".3f"), _show(median(mine, _p99))),
                _show(ratio(mine, alone, _p50)),
                _show(median(mine, _rate), ".0f"),
                *(str(sum(s.load.errors for s in mine)), _notes(mine)),
            ]
        )
    rows.sort(key=lambda row: (row[0], row[1]))
    headings = ["contender", "connections", "number", "p50 ms", "p99 ms", "p50 / pgbench", "requests/s"]
    return _table([*headings, "errors", "disturbed"], rows)


def overload(samples: list[Sample]) -> str:
    """Return the table of the overload part."""
    part = [sample for sample in samples if sample.part == "overload"]
    rows = []
    for contender, scenario in _unique(part, "contender", "scenario"):
        calm = chosen(part, contender=contender, offered=0)
        for close in (False, True):
            mine = [s for s in part if s.contender == contender and s.close == close and s.offered]
            mine = chosen(mine)
            rows.append(
                [
                    *(contender, scenario, "new" if close else "kept"),
                    *(_show(median(calm, _rate), ".0f"), _show(median(mine, lambda s: s.offered), ".0f")),
                    *(_show(median(mine, _rate), ".0f"), _show(ratio(mine, calm, _rate))),
                    *(_show(median(calm, _p99)), _show(median(mine, _p50)), _show(median(mine, _p99))),
                    *(str(sum(s.load.errors for s in mine)), _notes(mine)),
                ]
            )
    headings = ["contender", "scenario", "connections", "served", "offered", "served of it", "/ served"]
    return _table([*headings, "p99 ms before", "p50 ms", "p99 ms", "errors", "disturbed"], rows)


TABLES = {"throughput": throughput, "latency": latency, "overload": overload}


def _machine() -> dict[str, object]:
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "load": os.getloadavg(),
    }


def write(folder: Path, plan: Plan, samples: list[Sample]) -> None:
    """Print the tables, and write them, the samples and the plots to *folder*."""
    folder.mkdir(parents=True, exist_ok=True)
    document = {"machine": _machine(), "plan": asdict(plan), "samples": [s.as_dict() for s in samples]}
    (folder / "results.json").write_text(json.dumps(document, indent=1) + "\n")
    parts = [part for part in TABLES if any(sample.part == part for sample in samples)]
    text = "\n\n".join(f"{part}\n\n{TABLES[part](samples)}" for part in parts)
    (folder / "results.md").write_text(text + "\n")
    print(text)
