"""Cells of the master, the workers and their heartbeats."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from tests.faults import misbehaviour
from tests.faults.cell import CLIENTS, ONE_WORKER, Bound, Cell
from tests.faults.stage import Stage, suspended
from tests.support.waiting import eventually


def _hang_workers(stage: Stage) -> None:
    workers = stage.workers()
    for worker in workers:
        worker.suspend()
    for worker in workers:
        stage.await_replacement(worker)


def _spin_worker(stage: Stage) -> None:
    worker = stage.a_worker()
    worker.send_signal(misbehaviour.SPIN)
    stage.await_replacement(worker)


def _kill_master(stage: Stage) -> None:
    """Kill the master; the fault ends when systemd starts it again, `RestartSec` later."""
    pid = stage.service.pid
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: stage.service.pid != pid)


def _restart(stage: Stage) -> None:
    stage.service.stop()
    stage.service.start()


@contextmanager
def _doubling(stage: Stage) -> Iterator[None]:
    stage.environment[misbehaviour.DOUBLES_CREATES] = ""
    yield


@contextmanager
def _with_heartbeats(stage: Stage) -> Iterator[None]:
    folder = stage.folder / "heartbeats"
    folder.mkdir()
    stage.configuration += f"\nworker_tmp_dir = {str(folder)!r}\n"
    yield


@contextmanager
def _remove_heartbeats(stage: Stage) -> Iterator[None]:
    """Remove the folder, and kill a worker: the next one has no heartbeat."""
    folder = stage.folder / "heartbeats"
    folder.rename(folder.with_name("elsewhere"))
    stage.a_worker().kill()
    yield
    folder.with_name("elsewhere").rename(folder)


_PAUSED = Bound("500 503 cut", CLIENTS)
_ALL_HANG = Bound("cut", CLIENTS, ready="may fail")
_HANGING = Bound("cut 503")
CELLS = [
    Cell("worker", "dies", lambda stage: stage.a_worker().kill(), ONE_WORKER,
         lasts=0.0, mixed=True, short=True),
    # It goes on before it counts as hanging.
    Cell("worker", "is slow", lambda stage: suspended([stage.a_worker()]), _PAUSED, lasts=3.0, mixed=True),
    Cell("worker", "hangs", _spin_worker, _HANGING, lasts=0.0),
    Cell("all workers", "hangs", _hang_workers, _ALL_HANG, lasts=0.0),
    Cell("heartbeats", "dies", _remove_heartbeats, ONE_WORKER,
         setup=_with_heartbeats, lasts=3.0, trace="A worker could not be started", short=True),
    Cell("master", "dies", _kill_master, ONE_WORKER, lasts=0.0, restarts=True, mixed=True, short=True),
    Cell("restart", "is slow", _restart, ONE_WORKER, lasts=0.0, restarts=True, mixed=True),
    Cell("reload", "is slow", lambda stage: stage.service.hang_up(), lasts=0.0, mixed=True),
    Cell("doubled create (control)", "lies", lambda _: None, Bound("500"),
         setup=_doubling, control="R6", lasts=2.0, short=True),
]  # fmt: skip
