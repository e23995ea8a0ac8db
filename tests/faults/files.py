"""Cells of the files that a start or a reload reads, and of the schema that it requires."""

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from stackmgr import paths
from tests.faults.cell import Bound, Cell, Fault
from tests.faults.database import execute
from tests.faults.processes import REFUSED_RELOAD, kill_each_worker, refused_reload
from tests.faults.stage import Setup, Stage
from tests.support.tcp_proxy import Proxy

# An attempt to start that finds the file missing, RestartSec, and a start.
_RESTART_SECONDS = 10.0
_WHITELIST, _URL = "tokens.json", "database_url"

Damage = Callable[[Path], None]


def _replace_by_fifo(path: Path) -> None:
    """Let whoever opens the file wait, as on a file server that does not respond."""
    path.unlink()
    os.mkfifo(path)


@contextmanager
def _with_impatient_checks(setup: Setup) -> Iterator[None]:
    """Let a reload wait for its check for 10 s in place of two minutes."""
    with _with_whitelist(setup):
        setup.configuration += "\nfrom stackmgr.server import master as _m\n_m.CHECK_SECONDS = 10.0\n"
        yield


def _remove_token(path: Path) -> None:
    document = json.loads(path.read_text())
    document["tokens"].pop()
    path.write_text(json.dumps(document))


def _lead_elsewhere(path: Path) -> None:
    path.write_text("postgresql://stackmgr_service@127.0.0.1:1/stackmgr")


@contextmanager
def _with_whitelist(setup: Setup) -> Iterator[None]:
    path = setup.folder / _WHITELIST
    shutil.copy(paths.default_whitelist(), path)
    setup.environment["STACKMGR_TOKENS"] = str(path)
    yield


@contextmanager
def _with_url_file(setup: Setup) -> Iterator[None]:
    with Proxy(setup.server.socket_path) as proxy:
        path = setup.folder / _URL
        path.write_text(f"postgresql://postgres@127.0.0.1:{proxy.port}/stackmgr")
        setup.environment |= {"STACKMGR_DATABASE_URL": "", "STACKMGR_DATABASE_URL_FILE": str(path)}
        yield


@contextmanager
def _damaged(path: Path, damage: Damage) -> Iterator[None]:
    """Damage the file until the context ends."""
    content = path.read_bytes()
    damage(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        path.write_bytes(content)


def _refused(damage: Damage) -> Fault:
    """Return the fault in which a reload finds the whitelist damaged; workers die meanwhile."""

    @contextmanager
    def fault(stage: Stage) -> Iterator[None]:
        with _damaged(stage.folder / _WHITELIST, damage):
            refused_reload(stage)
            kill_each_worker(stage)
            yield
        stage.service.hang_up()

    return fault


@contextmanager
def _leads_elsewhere(stage: Stage) -> Iterator[None]:
    """Reload with a valid URL of no server, and then, as a person would, with the right one."""
    with _damaged(stage.folder / _URL, _lead_elsewhere):
        stage.service.hang_up()
        yield
    stage.service.hang_up()


@contextmanager
def _ends(stage: Stage) -> Iterator[None]:
    """Let the whitelist be missing when the service has to start."""
    with _damaged(stage.folder / _WHITELIST, Path.unlink):
        os.kill(stage.service.pid, signal.SIGKILL)
        yield


@contextmanager
def _lacks_migration(stage: Stage) -> Iterator[None]:
    """Let a reload find that the newest migration is not applied."""
    execute(stage, _NEGATED)
    try:
        refused_reload(stage)
        yield
    finally:
        execute(stage, _NEGATED)
    kill_each_worker(stage)


_NEGATED = (
    "UPDATE stackmgr.schema_migrations SET version = -version"
    " WHERE abs(version) = (SELECT max(abs(version)) FROM stackmgr.schema_migrations)"
)
_OUT = Bound("cut 500", ready="may fail", live=None, recovery=_RESTART_SECONDS, slowest=None)
_ELSEWHERE = Bound("503", ready="may fail")
_UNREADY = replace(REFUSED_RELOAD, ready="fails")


CELLS = [
    Cell("whitelist (missing)", "lies", _refused(Path.unlink), REFUSED_RELOAD, setup=_with_whitelist),
    Cell("whitelist (29 tokens)", "lies", _refused(_remove_token), REFUSED_RELOAD, setup=_with_whitelist),
    Cell("whitelist", "hangs", _refused(_replace_by_fifo), REFUSED_RELOAD, setup=_with_impatient_checks),
    Cell(
        "whitelist (and the service)",
        "dies",
        _ends,
        _OUT,
        setup=_with_whitelist,
        lasts=5.0,
        rest=8.0,
        restarts=True,
    ),
    Cell("URL file (another server)", "lies", _leads_elsewhere, _ELSEWHERE, setup=_with_url_file),
    Cell("migrations (one is missing)", "lies", _lacks_migration, _UNREADY),
]
