"""The short cells: no acknowledged write is lost, and nothing but what a bound names fails."""

import pytest

from tests.faults.cells import CELLS
from tests.faults.runner import run
from tests.faults.stage import NoPlace
from tests.support.postgres import FaultyPostgres


@pytest.mark.parametrize("name", [cell.name for cell in CELLS.values() if cell.short])
def test_a_fault_costs_no_more_than_its_bound(fault_server: FaultyPostgres, name: str) -> None:
    try:
        report = run(CELLS[name], fault_server, seed=1)
    except NoPlace as ex:
        pytest.skip(str(ex))
    assert report.contradictions() == []
