"""Cells of the master, the workers, and the files that a start or a reload reads."""

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from stackmgr import paths
from tests.faults import misbehaviour
from tests.faults.cell import CLIENTS, ONE_WORKER, RECOVERY, Bound, Cell, Fault, Prepare
from tests.faults.database import execute
from tests.faults.stage import Stage, suspended
from tests.support.tcp_proxy import Proxy
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
# An attempt to start that finds the file missing, RestartSec, and a start.
_RESTART_SECONDS = 10.0
_WHITELIST, _URL = "tokens.json", "database_url"
_NOWHERE = "postgresql://stackmgr_service@127.0.0.1:1/stackmgr"
_NEGATED = (
    "UPDATE stackmgr.schema_migrations SET version = -version"
    " WHERE abs(version) = (SELECT max(abs(version)) FROM stackmgr.schema_migrations)"
)


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


def _refused_reload(stage: Stage) -> None:
    """Reload, and return once the master has refused it.  The workers are those of before."""
    before, refused = set(stage.workers()), stage.service.log.count(_REFUSED)
    os.kill(stage.service.pid, signal.SIGHUP)
    eventually(lambda: stage.service.log.count(_REFUSED) > refused, _PATIENCE, "the reload is not refused")
    assert set(stage.workers()) == before


def _kill_each_worker(stage: Stage) -> None:
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
        _refused_reload(stage)
        path.write_text(text)
        yield
        _kill_each_worker(stage)
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


@contextmanager
def _with_whitelist(stage: Stage) -> Iterator[None]:
    path = stage.folder / _WHITELIST
    shutil.copy(paths.default_whitelist(), path)
    stage.environment["STACKMGR_TOKENS"] = str(path)
    yield


@contextmanager
def _with_url_file(stage: Stage) -> Iterator[None]:
    with Proxy(stage.server.socket_path) as proxy:
        path = stage.folder / _URL
        path.write_text(f"postgresql://postgres@127.0.0.1:{proxy.port}/stackmgr")
        stage.environment |= {"STACKMGR_DATABASE_URL": "", "STACKMGR_DATABASE_URL_FILE": str(path)}
        yield


@contextmanager
def _replaced(path: Path, text: str | None) -> Iterator[None]:
    """Replace the text of the file until the context ends; without one, remove it."""
    content = path.read_text()
    path.unlink() if text is None else path.write_text(text)
    try:
        yield
    finally:
        path.write_text(content)


@contextmanager
def _refuse_whitelist(stage: Stage) -> Iterator[None]:
    """Let a reload find no whitelist; workers die meanwhile."""
    with _replaced(stage.folder / _WHITELIST, None):
        _refused_reload(stage)
        _kill_each_worker(stage)
        yield
    stage.service.hang_up()


@contextmanager
def _lead_elsewhere(stage: Stage) -> Iterator[None]:
    """Reload with a valid URL of no server, and then, as a person would, with the right one."""
    with _replaced(stage.folder / _URL, _NOWHERE):
        stage.service.hang_up()
        yield
    stage.service.hang_up()


@contextmanager
def _end(stage: Stage) -> Iterator[None]:
    """Let the whitelist be missing when the service has to start."""
    with _replaced(stage.folder / _WHITELIST, None):
        os.kill(stage.service.pid, signal.SIGKILL)
        yield


@contextmanager
def _lack_migration(stage: Stage) -> Iterator[None]:
    """Let a reload find that the newest migration is not applied."""
    execute(stage, _NEGATED)
    try:
        _refused_reload(stage)
        yield
    finally:
        execute(stage, _NEGATED)
    _kill_each_worker(stage)


# While one worker starts, the other one is all there is.
_REFUSED_RELOAD = Bound("cut", 2 * CLIENTS, live=RECOVERY)
_RESTART = Bound("cut", CLIENTS, live=_START_SECONDS, slowest=_START_SECONDS)
_PAUSED = Bound("500 503 cut", CLIENTS, slowest=5.0)
_ALL_HANG = Bound("cut", CLIENTS, ready="may fail", live=45.0, slowest=45.0)
_HANGING = Bound("cut 503", slowest=45.0)
_RAISING_BOOT = "\ndef post_worker_init(worker):\n    raise OSError\n"
_HANGING_BOOT = "\nimport time\n\ndef post_fork(server, worker):\n    time.sleep(100)\n"
_OUT = Bound("cut 500", ready="may fail", live=None, recovery=_RESTART_SECONDS, slowest=None)
_ELSEWHERE = Bound("503", ready="may fail")
_UNREADY = replace(_REFUSED_RELOAD, ready="fails")

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
    Cell("reload (settings)", "dies", _refuses("\nthis is no Python\n"), _REFUSED_RELOAD, short=True),
    Cell("reload (workers)", "dies", _refuses(_RAISING_BOOT), _REFUSED_RELOAD),
    Cell("reload (workers)", "hangs", _refuses(_HANGING_BOOT), _REFUSED_RELOAD),
    Cell("whitelist", "dies", _refuse_whitelist, _REFUSED_RELOAD, setup=_with_whitelist),
    Cell(
        *("whitelist (and the service)", "dies", _end, _OUT),
        setup=_with_whitelist,
        lasts=5.0,
        rest=8.0,
        restarts=True,
    ),
    Cell("URL file (another server)", "lies", _lead_elsewhere, _ELSEWHERE, setup=_with_url_file),
    Cell("migrations (one is missing)", "lies", _lack_migration, _UNREADY),
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
