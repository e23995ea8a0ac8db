"""Cells of the files that a start or a reload reads, and of the schema that it requires."""

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from stackmgr import paths
from tests.faults.cell import Bound, Cell
from tests.faults.database import execute
from tests.faults.processes import REFUSED_RELOAD, kill_each_worker, refused_reload
from tests.faults.stage import Stage
from tests.support.tcp_proxy import Proxy

# An attempt to start that finds the file missing, RestartSec, and a start.
_RESTART_SECONDS = 10.0
_WHITELIST, _URL = "tokens.json", "database_url"
_NOWHERE = "postgresql://stackmgr_service@127.0.0.1:1/stackmgr"
_NEGATED = (
    "UPDATE stackmgr.schema_migrations SET version = -version"
    " WHERE abs(version) = (SELECT max(abs(version)) FROM stackmgr.schema_migrations)"
)


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
        refused_reload(stage)
        kill_each_worker(stage)
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
        refused_reload(stage)
        yield
    finally:
        execute(stage, _NEGATED)
    kill_each_worker(stage)


_OUT = Bound("cut 500", ready="may fail", live=None, recovery=_RESTART_SECONDS, slowest=None)
_ELSEWHERE = Bound("503", ready="may fail")
_UNREADY = replace(REFUSED_RELOAD, ready="fails")

CELLS = [
    Cell("whitelist", "dies", _refuse_whitelist, REFUSED_RELOAD, setup=_with_whitelist),
    Cell(
        *("whitelist (and the service)", "dies", _end, _OUT),
        setup=_with_whitelist,
        lasts=5.0,
        rest=8.0,
        restarts=True,
    ),
    Cell("URL file (another server)", "lies", _lead_elsewhere, _ELSEWHERE, setup=_with_url_file),
    Cell("migrations (one is missing)", "lies", _lack_migration, _UNREADY),
]
