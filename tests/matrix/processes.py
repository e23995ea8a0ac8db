"""The master and the workers, and the threads of a worker."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from tests.matrix.cell import CLIENTS, Bound, Cell, Fault
from tests.matrix.stage import Stage
from tests.support.server import workers_replaced

# Until a master that died is started again: RestartSec of the unit, and the start.
START_SECONDS = 6.0


@contextmanager
def kill_worker(stage: Stage) -> Iterator[None]:
    stage.a_worker().kill()
    yield


@contextmanager
def kill_workers(stage: Stage) -> Iterator[None]:
    """Kill all of them at once."""
    for worker in stage.workers():
        worker.kill()
    yield


@contextmanager
def kill_master(stage: Stage) -> Iterator[None]:
    os.kill(stage.service.pid, signal.SIGKILL)
    yield


@contextmanager
def stop_master(stage: Stage) -> Iterator[None]:
    """Suspend the master, which then replaces no worker."""
    os.kill(stage.service.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(stage.service.pid, signal.SIGCONT)


@contextmanager
def stop_worker(stage: Stage) -> Iterator[None]:
    """Suspend a worker until the master replaces it."""
    worker = stage.a_worker()
    worker.suspend()
    stage.await_replacement(worker)
    yield


@contextmanager
def pause_worker(stage: Stage) -> Iterator[None]:
    """Suspend a worker, and let it go on before it counts as hanging."""
    worker = stage.a_worker()
    worker.suspend()
    try:
        yield
    finally:
        worker.resume()


@contextmanager
def reload_workers(stage: Stage) -> Iterator[None]:
    with workers_replaced(stage.service.pid, 60):
        os.kill(stage.service.pid, signal.SIGHUP)
    yield


@contextmanager
def restart(stage: Stage) -> Iterator[None]:
    stage.service.stop()
    stage.service.start()
    yield


def misbehaving(order: str, thread: str) -> Fault:
    """Return the fault that a worker carries out an order until the master replaces it."""

    @contextmanager
    def fault(stage: Stage) -> Iterator[None]:
        worker = stage.a_worker()
        stage.misbehave(worker, order, thread)
        stage.await_replacement(worker)
        yield

    return fault


_ONE_WORKER = Bound("cut", CLIENTS)
_RESTART = Bound("cut", CLIENTS, live=START_SECONDS, recovery=START_SECONDS, slowest=START_SECONDS)
_HANGING = Bound("cut 503", slowest=45.0)

CELLS = [
    Cell("worker", "dies", kill_worker, _ONE_WORKER, lasts=0.0, mixed=True, short=True),
    Cell("worker", "hangs", stop_worker, Bound("cut", CLIENTS, slowest=45.0), lasts=0.0),
    Cell("worker", "is slow", pause_worker, Bound(slowest=5.0), lasts=3.0, mixed=True),
    Cell("all workers", "dies", kill_workers, _RESTART, lasts=0.0, mixed=True),
    Cell("master", "dies", kill_master, _RESTART, lasts=0.0, mixed=True, short=True),
    Cell("master", "hangs", stop_master, Bound(), lasts=5.0, mixed=True),
    Cell("reload", "is slow", reload_workers, Bound(), lasts=0.0, mixed=True),
    Cell(
        "restart",
        "is slow",
        restart,
        Bound(live=START_SECONDS, slowest=START_SECONDS),
        lasts=0.0,
        mixed=True,
    ),
    Cell("request thread", "dies", misbehaving("end", "requests"), _ONE_WORKER, lasts=0.0, short=True),
    Cell("request thread (spins)", "hangs", misbehaving("spin", "requests"), _HANGING, lasts=0.0),
    Cell("request thread (blocked)", "hangs", misbehaving("block", "requests"), _HANGING, lasts=0.0),
    Cell("interpreter lock", "hangs", misbehaving("block-with-the-lock", "requests"), _HANGING, lasts=0.0),
    Cell("main thread of a worker", "hangs", misbehaving("block", "main"), _HANGING, lasts=0.0),
]
