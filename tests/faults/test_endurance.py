"""The short form of a long run, and that growth is found."""

from dataclasses import replace
from typing import Any

import pytest

from tests.faults.endurance import Plan, Samples, Use, run
from tests.support.postgres import FaultyPostgres


def test_no_write_under_faults_is_lost_or_duplicated(fault_server: FaultyPostgres) -> None:
    faults = ("worker-dies", "backend-dies", "network-to-the-database-dies")
    plan = Plan(setting="plain", seed=1, writes=500, rest=0.3, clients=12, faults=faults)
    report, _ = run(plan, fault_server)
    assert report.contradictions() == []
    assert report.acknowledged >= 500
    assert report.faults


@pytest.mark.parametrize(
    ("use", "value"), [("megabytes", 120.0), ("descriptors", 60), ("threads", 9)], ids=str
)
def test_growth_is_found(use: str, value: Any) -> None:
    samples = Samples()
    samples.uses["worker"] = [Use(minute * 60.0, 100.0, 50, 5) for minute in range(3)]
    assert samples.growth() == []
    samples.uses["worker"].append(replace(samples.uses["worker"][-1], at=180.0, **{use: value}))
    assert len(samples.growth()) == 1
