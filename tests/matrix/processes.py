"""The master and the workers, and the threads of a worker."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.matrix.cell import CLIENTS, Bound, Cell, Fault
from tests.matrix.stage import REPLACED, Setup, Stage
from tests.support.server import workers_replaced
from tests.support.waiting import eventually

_REFUSED = "The reload is refused"
_NO_BOOT = """
import os as _os
_fork = post_fork

def post_fork(server, worker):
    _fork(server, worker)
    if _os.path.exists({path!r}):
        worker.wsgi = None
        worker.load_wsgi = lambda: 1 / 0
"""
# Seconds without a worker: RestartSec of the unit, and the start.
START_SECONDS = 3.0


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
    """Kill the master; the fault ends when systemd starts it again, `RestartSec` later."""
    pid = stage.service.pid
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: stage.service.pid != pid)
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


@contextmanager
def end_worker(stage: Stage) -> Iterator[None]:
    """Let a worker end as gunicorn's master does with one too many."""
    stage.a_worker().terminate()
    yield


@contextmanager
def stop_workers(stage: Stage) -> Iterator[None]:
    """Suspend all workers until the master replaces them."""
    workers = stage.workers()
    for worker in workers:
        worker.suspend()
    for worker in workers:
        stage.await_replacement(worker)
    yield


@contextmanager
def hold_up(stage: Stage) -> Iterator[None]:
    """Hold up all requests of a worker for a tenth of a second, ten times."""
    worker = stage.a_worker()
    for _ in range(10):
        stage.misbehave(worker, "slow")
        time.sleep(0.2)
    yield


def reloading(settings: str) -> Fault:
    """Return the fault that a reload meets settings with these lines; then they are corrected."""

    @contextmanager
    def fault(stage: Stage) -> Iterator[None]:
        path = stage.folder / "deploy" / "gunicorn.conf.py"
        text = path.read_text()
        before = set(stage.workers())
        path.write_text(text + settings)
        os.kill(stage.service.pid, signal.SIGHUP)
        eventually(lambda: _REFUSED in stage.service.log, REPLACED, "the reload is not refused")
        path.write_text(text)
        yield
        assert set(stage.workers()) == before
        with workers_replaced(stage.service.pid, 60):
            os.kill(stage.service.pid, signal.SIGHUP)

    return fault


@contextmanager
def fail_boot(stage: Stage) -> Iterator[None]:
    """Let no worker boot, and kill one."""
    with (stage.folder / "no-boot").open("w"):
        stage.a_worker().kill()
    yield
    (stage.folder / "no-boot").unlink()


@contextmanager
def unbootable(setup: Setup) -> Iterator[None]:
    """Let workers check for the file that keeps them from booting."""
    setup.configuration += _NO_BOOT.format(path=str(setup.folder / "no-boot"))
    yield


def misbehaving(order: str) -> Fault:
    """Return the fault that a worker carries out an order until the master replaces it."""

    @contextmanager
    def fault(stage: Stage) -> Iterator[None]:
        worker = stage.a_worker()
        stage.misbehave(worker, order)
        stage.await_replacement(worker)
        yield

    return fault


_ONE_WORKER = Bound("cut", CLIENTS)
_RESTART = Bound("cut", CLIENTS, live=START_SECONDS, slowest=START_SECONDS)
_ALL_HANG = Bound("cut", CLIENTS, ready="may fail", live=45.0, slowest=45.0)
_HANGING_BOOT = "\nimport time\n\ndef post_fork(server, worker):\n    time.sleep(100)\n"
_HANGING = Bound("cut 503", slowest=45.0)

CELLS = [
    Cell("worker", "dies", kill_worker, _ONE_WORKER, lasts=0.0, mixed=True, short=True),
    Cell("worker", "hangs", stop_worker, Bound("cut", CLIENTS, slowest=45.0), lasts=0.0),
    Cell(
        "worker", "is slow", pause_worker, Bound("500 503 cut", CLIENTS, slowest=5.0), lasts=3.0, mixed=True
    ),
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
    Cell("worker (SIGTERM)", "dies", end_worker, lasts=0.0, mixed=True),
    Cell("all workers", "hangs", stop_workers, _ALL_HANG, lasts=0.0),
    Cell(
        "boot of a worker",
        "dies",
        fail_boot,
        Bound("cut", CLIENTS),
        setup=unbootable,
        lasts=3.0,
        trace="This worker cannot boot",
        short=True,
    ),
    Cell("reload (settings)", "dies", reloading("\nthis is no Python\n"), short=True),
    Cell("reload (workers)", "dies", reloading("\ndef post_worker_init(worker):\n    raise OSError\n")),
    Cell("reload (workers)", "hangs", reloading(_HANGING_BOOT)),
    Cell("thread of a worker", "is slow", hold_up, lasts=0.0),
    Cell("thread of a worker", "dies", misbehaving("end"), _ONE_WORKER, lasts=0.0),
    Cell("thread of a worker (spins)", "hangs", misbehaving("spin"), _HANGING, lasts=0.0),
    Cell("thread of a worker (blocked)", "hangs", misbehaving("block"), _HANGING, lasts=0.0),
    Cell("interpreter lock", "hangs", misbehaving("block-with-the-lock"), _HANGING, lasts=0.0),
]
