"""The short form of the matrix: no acknowledged write is lost, and nothing but what a bound names fails."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.matrix.cells import CELLS, EMPTY
from tests.matrix.runner import run
from tests.matrix.stage import NoPlace
from tests.support.memory import memory
from tests.support.postgres import FaultyPostgres


@pytest.fixture(scope="module")
def matrix_server() -> Iterator[FaultyPostgres]:
    with (
        tempfile.TemporaryDirectory(prefix="stackmgr-matrix-", dir=memory()) as folder,
        FaultyPostgres(Path(folder) / "data") as server,
    ):
        server.prepare()
        yield server


@pytest.mark.parametrize("name", [cell.name for cell in CELLS.values() if cell.short])
def test_a_fault_costs_no_more_than_its_bound(matrix_server: FaultyPostgres, name: str) -> None:
    try:
        report = run(CELLS[name], matrix_server, seed=1)
    except NoPlace as ex:
        pytest.skip(str(ex))
    assert report.contradictions() == []


def test_what_no_cell_injects_has_a_reason() -> None:
    assert all(EMPTY.values())
