"""Runs a cell: clients read and write while the fault is injected, and the record is judged."""

import time
from contextlib import nullcontext

from tests.faults import database, fronts, processes
from tests.faults.cell import CLIENTS, Cell
from tests.faults.prober import probing
from tests.faults.report import Report, judged
from tests.faults.stage import WORKERS, Stage, staged
from tests.support.postgres import FaultyPostgres

# Each takes another path through the service; the modules are ordered by where it begins.
CELLS = {cell.name: cell for module in (processes, database, fronts) for cell in module.CELLS}
_PAUSE = 0.02
_SETTLE = 0.5


def run(cell: Cell, server: FaultyPostgres, seed: int, times: int = 1) -> Report:
    with staged(server, seed, cell.setup) as stage:
        workload = stage.workload(seed)
        with probing(stage.service.admin_port) as probes:
            workload.start(CLIENTS, pause=_PAUSE)
            try:
                time.sleep(_SETTLE)
                for _ in range(times):
                    inject(cell, stage)
                    time.sleep(cell.rest)
            except BaseException:
                stage.service.close()  # or clients would wait for a service that does not return
                raise
            finally:
                workload.stop()
        stage.service.await_workers(WORKERS)
        stage.service.stop()
        return judged(cell, stage.evidence(), workload, probes)


def inject(cell: Cell, stage: Stage) -> None:
    began, master = time.monotonic(), stage.service.pid
    with cell.fault(stage) or nullcontext():
        time.sleep(cell.lasts)
    stage.faults.append((began, time.monotonic()))
    stage.service.await_workers(WORKERS)
    stage.service.await_readiness()
    assert cell.restarts or stage.service.pid == master, "the master has ended"
