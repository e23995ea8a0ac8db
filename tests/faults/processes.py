"""Cells of the master and the workers: they die, hang, are reloaded, cannot boot, and make mistakes."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from tests.faults import misbehaviour
from tests.faults.cell import CLIENTS, ONE_WORKER, RECOVERY, Bound, Cell, Fault, Prepare
from tests.faults.stage import Stage, suspended
from tests.support.waiting import eventually

_REFUSED = "The reload is refused"
# Longer than the check of a release, and than a boot may take.
_PATIENCE = 60.0
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
_START_SECONDS = 3.0


def _hang_workers(stage: Stage) -> None:
    """Suspend all workers until the master replaces them."""
    workers = stage.workers()
    for worker in workers:
        worker.suspend()
    for worker in workers:
        stage.await_replacement(worker)


def _spin_worker(stage: Stage) -> None:
    """Let a worker compute for ever, until the master replaces it."""
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


def refused_reload(stage: Stage) -> None:
    """Reload, and return once the master has refused it.  The workers are those of before."""
    before, refused = set(stage.workers()), stage.service.log.count(_REFUSED)
    os.kill(stage.service.pid, signal.SIGHUP)
    eventually(lambda: stage.service.log.count(_REFUSED) > refused, _PATIENCE, "the reload is not refused")
    assert set(stage.workers()) == before


def kill_each_worker(stage: Stage) -> None:
    """Kill the workers one after the other: the master must still be able to replace them."""
    for worker in stage.workers():
        worker.kill()
        stage.await_replacement(worker)
        stage.service.await_readiness()


def _refuses(settings: str) -> Fault:
    """Return the fault that a reload meets settings with these lines; then they are corrected."""

    @contextmanager
    def fault(stage: Stage) -> Iterator[None]:
        path = stage.folder / "deploy" / "gunicorn.conf.py"
        text = path.read_text()
        path.write_text(text + settings)
        refused_reload(stage)
        path.write_text(text)
        yield
        kill_each_worker(stage)
        stage.service.hang_up()

    return fault


@contextmanager
def _unbootable(stage: Stage) -> Iterator[None]:
    """Let workers check for the file that keeps them from booting."""
    stage.configuration += _NO_BOOT.format(path=str(stage.folder / "no-boot"))
    yield


@contextmanager
def _fail_boot(stage: Stage) -> Iterator[None]:
    """Let no worker boot, and kill one."""
    (stage.folder / "no-boot").touch()
    stage.a_worker().kill()
    yield
    (stage.folder / "no-boot").unlink()


def _makes(mistake: str) -> Prepare:
    @contextmanager
    def prepare(stage: Stage) -> Iterator[None]:
        stage.environment["FAULTS_MISTAKE"] = mistake
        yield

    return prepare


# While one worker starts, the other one is all there is.
REFUSED_RELOAD = Bound("cut", 2 * CLIENTS, live=RECOVERY)
_RESTART = Bound("cut", CLIENTS, live=_START_SECONDS, slowest=_START_SECONDS)
_PAUSED = Bound("500 503 cut", CLIENTS, slowest=5.0)
_ALL_HANG = Bound("cut", CLIENTS, ready="may fail", live=45.0, slowest=45.0)
_HANGING = Bound("cut 503", slowest=45.0)
_RAISING_BOOT = "\ndef post_worker_init(worker):\n    raise OSError\n"
_HANGING_BOOT = "\nimport time\n\ndef post_fork(server, worker):\n    time.sleep(100)\n"

CELLS = [
    Cell(
        *("worker", "dies", lambda stage: stage.a_worker().kill(), ONE_WORKER),
        lasts=0.0,
        mixed=True,
        short=True,
    ),
    # It goes on before it counts as hanging.
    Cell("worker", "is slow", lambda stage: suspended([stage.a_worker()]), _PAUSED, lasts=3.0, mixed=True),
    Cell("worker", "hangs", _spin_worker, _HANGING, lasts=0.0),
    Cell("all workers", "hangs", _hang_workers, _ALL_HANG, lasts=0.0),
    Cell(
        *("boot of a worker", "dies", _fail_boot, ONE_WORKER),
        setup=_unbootable,
        lasts=3.0,
        trace="This worker cannot boot",
        short=True,
    ),
    Cell("master", "dies", _kill_master, _RESTART, lasts=0.0, restarts=True, mixed=True, short=True),
    Cell("restart", "is slow", _restart, _RESTART, lasts=0.0, restarts=True, mixed=True),
    Cell("reload", "is slow", lambda stage: stage.service.hang_up(), lasts=0.0, mixed=True),
    Cell("reload (settings)", "dies", _refuses("\nthis is no Python\n"), REFUSED_RELOAD, short=True),
    Cell("reload (workers)", "dies", _refuses(_RAISING_BOOT), REFUSED_RELOAD),
    Cell("reload (workers)", "hangs", _refuses(_HANGING_BOOT), REFUSED_RELOAD),
    *(
        Cell(
            *(f"{mistake} (control)", "lies", lambda _: None, Bound("500")),
            setup=_makes(mistake),
            control=rule,
            clients=12,
            lasts=2.0,
            short=mistake == "doubled create",
        )
        for mistake, rule in misbehaviour.MISTAKES.items()
    ),
]
