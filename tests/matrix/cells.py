"""All cells of the matrix, and those that stay empty, with the reason."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.matrix import (
    clients,
    clocks,
    database,
    failover,
    files,
    fronts,
    limits,
    links,
    logs,
    network,
    processes,
    server_objects,
    server_processes,
    shared_files,
    verifier,
    verifier_faults,
    volume,
)
from tests.matrix.cell import Bound, Cell
from tests.matrix.stage import Stage

_MODULES = (
    *(processes, limits, clients, logs, shared_files),
    *(database, server_processes, server_objects, volume, failover),
    *(network, links),
    *(verifier, verifier_faults),
    fronts,
    files,
    clocks,
)
EMPTY: dict[str, str] = {
    what: why for module in _MODULES for what, why in getattr(module, "EMPTY", {}).items()
}


@contextmanager
def anything(stage: Stage) -> Iterator[None]:
    """Inject the other faults one after the other, shuffled anew each time all have had their turn."""
    if not stage.deck:
        stage.deck = [cell.name for cell in CELLS.values() if cell.mixed]
        stage.chance.shuffle(stage.deck)
    cell = CELLS[stage.deck.pop()]
    with cell.fault(stage):
        time.sleep(cell.lasts)
        yield


MIXED = Cell(
    "mixed", "dies", anything, Bound("500 503 cut", ready="may fail", live=None), lasts=0.0, rest=1.0
)
CELLS = {cell.name: cell for module in _MODULES for cell in module.CELLS}
