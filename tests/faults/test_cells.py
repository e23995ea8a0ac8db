"""The short cells and drills: no acknowledged write is lost, and nothing but what a bound names fails."""

from collections.abc import Iterator

import pytest

from tests.faults import endurance, upgrade
from tests.faults.endurance import Plan, Samples
from tests.faults.runner import CELLS, run
from tests.faults.stage import NoPlace
from tests.support.nginx import NGINX
from tests.support.postgres import FaultyPostgres, faulty_postgres
from tests.support.programs import require


@pytest.fixture(scope="module")
def server() -> Iterator[FaultyPostgres]:
    with faulty_postgres() as running:
        yield running


@pytest.mark.parametrize("name", [cell.name for cell in CELLS.values() if cell.short])
def test_fault_costs_no_more_than_its_bound(server: FaultyPostgres, name: str) -> None:
    try:
        report = run(CELLS[name], server, seed=1)
    except NoPlace as ex:
        pytest.skip(str(ex))
    assert report.contradictions() == []


def test_no_write_under_faults_is_lost_or_duplicated(server: FaultyPostgres) -> None:
    faults = ("worker-dies", "backend-dies", "network-to-the-database-dies")
    report = endurance.run(Plan("plain", 1, 500, rest=0.3, clients=12, faults=faults), server)
    assert report.contradictions() == []
    assert report.acknowledged >= 500
    assert report.faults


@pytest.mark.parametrize(("kind", "value"), [("MB", 120.0), ("descriptors", 60.0), ("threads", 53.0)])
def test_growth_is_found(kind: str, value: float) -> None:
    samples = Samples()
    samples.uses["worker", kind] = [(minute * 60.0, 50.0) for minute in range(3)]
    assert samples.growth() == []
    samples.uses["worker", kind].append((180.0, value))
    assert len(samples.growth()) == 1


def test_upgrade_fails_no_request(server_url: str) -> None:
    require(NGINX, "nginx")
    report = upgrade.run(server_url, seed=1, times=0, pause=0.05)
    assert report.contradictions() == []
    assert report.faults == 4  # the migration, the upgrade and rollback by reloads, the upgrade by restarts
