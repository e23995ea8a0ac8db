"""Cells of the files that a start or a reload reads, and of the schema that it requires."""

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from stackmgr import paths
from tests.matrix.cell import CLIENTS, Bound, Cell, Fault
from tests.matrix.server_objects import execute
from tests.matrix.stage import Setup, Stage
from tests.support.server import workers_replaced
from tests.support.tcp_proxy import Proxy
from tests.support.waiting import eventually

_REFUSED = "The reload is refused"
_PATIENCE = 60.0
# An attempt to start that finds the file missing, RestartSec, and a start.
_RESTART_SECONDS = 10.0
_WHITELIST, _URL = "tokens.json", "database_url"

Damage = Callable[[Path], None]


def _remove(path: Path) -> None:
    path.unlink()


def _truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _write_garbage(path: Path) -> None:
    path.write_bytes(bytes(range(256)))


def _replace_by_fifo(path: Path) -> None:
    """Let whoever opens the file wait, as on a file server that does not respond."""
    path.unlink()
    os.mkfifo(path)


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


def _reload(stage: Stage) -> None:
    os.kill(stage.service.pid, signal.SIGHUP)


def _reload_is_refused(stage: Stage) -> None:
    """Reload, and return once the master has refused it."""
    before = stage.service.log.count(_REFUSED)
    _reload(stage)
    eventually(lambda: stage.service.log.count(_REFUSED) > before, _PATIENCE)


def _reload_succeeds(stage: Stage) -> None:
    with workers_replaced(stage.service.pid, _PATIENCE):
        _reload(stage)


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


def _refused(name: str, damage: Damage, *, kill: bool = False) -> Fault:
    """Return the fault in which a reload finds the file damaged; a worker dies meanwhile if *kill*."""

    @contextmanager
    def fault(stage: Stage) -> Iterator[None]:
        with _damaged(stage.folder / name, damage):
            _reload_is_refused(stage)
            if kill:
                worker = stage.a_worker()
                worker.kill()
                stage.await_replacement(worker)
            yield
        _reload_succeeds(stage)

    return fault


@contextmanager
def _leads_elsewhere(stage: Stage) -> Iterator[None]:
    """Reload with a valid URL of no server, and then with the right one."""
    with _damaged(stage.folder / _URL, _lead_elsewhere):
        _reload_succeeds(stage)
        yield
    _reload_succeeds(stage)


@contextmanager
def _ends(stage: Stage) -> Iterator[None]:
    """Let the whitelist be missing when the service has to start."""
    with _damaged(stage.folder / _WHITELIST, _remove):
        os.kill(stage.service.pid, signal.SIGKILL)
        yield


def _migration(change: str, undo: str, *, is_refused: bool) -> Fault:
    """Return the fault that a reload finds another schema version."""

    @contextmanager
    def fault(stage: Stage) -> Iterator[None]:
        execute(stage, change)
        try:
            if is_refused:
                _reload_is_refused(stage)
            else:
                _reload_succeeds(stage)
            yield
        finally:
            execute(stage, undo)

    return fault


_NEGATED = (
    "UPDATE stackmgr.schema_migrations SET version = -version"
    " WHERE abs(version) = (SELECT max(abs(version)) FROM stackmgr.schema_migrations)"
)
_AHEAD = (
    "INSERT INTO stackmgr.schema_migrations (version, slug, checksum)"
    " SELECT version + 1, 'newer', checksum FROM stackmgr.schema_migrations ORDER BY version DESC LIMIT 1"
)
_AS_BEFORE = "DELETE FROM stackmgr.schema_migrations WHERE slug = 'newer'"
_DAMAGES: dict[str, Damage] = {
    "missing": _remove,
    "truncated": _truncate,
    "garbage": _write_garbage,
    "29 tokens": _remove_token,
}
_OUT = Bound("cut 500", ready="may fail", live=None, recovery=_RESTART_SECONDS, slowest=None)

CELLS = [
    *(
        Cell(f"whitelist ({what})", "lies", _refused(_WHITELIST, damage), setup=_with_whitelist)
        for what, damage in _DAMAGES.items()
    ),
    Cell(
        *("whitelist (missing, and a worker)", "dies", _refused(_WHITELIST, _remove, kill=True)),
        Bound("cut", CLIENTS),
        setup=_with_whitelist,
    ),
    Cell("whitelist", "hangs", _refused(_WHITELIST, _replace_by_fifo), setup=_with_whitelist),
    Cell("whitelist (and the service)", "dies", _ends, _OUT, setup=_with_whitelist, lasts=5.0, rest=8.0),
    Cell("URL file", "dies", _refused(_URL, _remove), setup=_with_url_file),
    Cell("URL file (garbage)", "lies", _refused(_URL, _write_garbage), setup=_with_url_file),
    Cell(
        *("URL file (another server)", "lies", _leads_elsewhere),
        Bound("503", ready="may fail"),
        setup=_with_url_file,
        person="corrects the file and reloads",
    ),
    Cell(
        *("migrations (one is missing)", "lies"),
        _migration(
            _NEGATED,
            _NEGATED,
            is_refused=True,
        ),
        Bound(ready="fails"),
    ),
    Cell(
        *("migrations (a newer one)", "lies"),
        _migration(_AHEAD, _AS_BEFORE, is_refused=False),
    ),
]

EMPTY = {
    "whitelist: is slow": "only a start and a reload read it; see the one that hangs",
    "whitelist (at a first start): dies": "a person provides the file; systemd's next start succeeds",
}
