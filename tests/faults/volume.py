"""Cells of a server whose data are on a small volume of their own, which becomes full."""

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg

from tests.faults.cell import DOWN, OUTAGE, Cell, Fault
from tests.faults.stage import NoPlace, Setup, Stage
from tests.support.memory import reachable
from tests.support.postgres import FaultyPostgres
from tests.support.waiting import eventually

_SIZE = "256m"
# The least that PostgreSQL takes: it is to need a new file soon, and not to fill the volume by itself.
_SETTINGS = "\nmin_wal_size = 32MB\nmax_wal_size = 32MB\n"
_PIECES = (1 << 20, 1 << 12)
# Like a standby that is away: no file of the WAL is used again.
_KEEP_WAL = b"SELECT pg_create_physical_replication_slot('drill', true)"
_KEEP_NO_WAL = b"SELECT pg_drop_replication_slot('drill')"
_NEXT_WAL_FILE = b"SELECT pg_logical_emit_message(false, 'drill', 'full'), pg_switch_wal()"
# What the service writes into its log when PostgreSQL says "disk full".
_NOTED = ' 53100"'
# Seconds in which it is to be noticed, and to be over.
_WITHIN = 60.0


def _fill(volume: Path) -> None:
    """Leave no room on *volume*, the root of a file system, whatever has been freed since the last time."""
    with (volume / "ballast").open("ab") as ballast:
        for piece in _PIECES:
            with suppress(OSError):
                while True:
                    os.posix_fallocate(ballast.fileno(), os.fstat(ballast.fileno()).st_size, piece)


@contextmanager
def kept_full(volume: Path) -> Iterator[None]:
    _fill(volume)
    try:
        yield
    finally:
        (volume / "ballast").unlink()


class _SmallVolume(FaultyPostgres):
    """A server on *volume*; its log is elsewhere, in *folder*."""

    def __init__(self, volume: Path, folder: Path) -> None:
        super().__init__(volume / "data")
        self.volume = volume
        self._log = folder / "server.log"

    def make_cluster(self, initdb: Path) -> None:
        super().make_cluster(initdb)
        (self.folder / "server.log").symlink_to(self._log)
        with (self.folder / "postgresql.conf").open("a") as settings:
            settings.write(_SETTINGS)

    def run(self, statement: bytes) -> None:
        with psycopg.connect(self.url(), autocommit=True, connect_timeout=5) as connection:
            connection.execute(statement)


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[None]:
    """Mount a volume in memory on *folder*.  Raises NoPlace where that cannot be."""
    if os.geteuid() != 0:
        raise NoPlace("only root can mount a volume")
    mount = ("mount", "-t", "tmpfs", "-o", f"size={options}", "tmpfs", folder)
    made = subprocess.run(mount, check=False, capture_output=True, text=True)
    if made.returncode != 0:
        raise NoPlace(f"a volume cannot be mounted here: {made.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)  # noqa: S607 - wherever it is


@contextmanager
def _small_volume(setup: Setup) -> Iterator[None]:
    """Run the server on a volume of its own."""
    with tempfile.TemporaryDirectory(prefix="stackmgr-volume-") as folder:
        volume = reachable(folder) / "volume"
        volume.mkdir()
        with mounted(volume, f"{_SIZE},mode=755"), _SmallVolume(volume, Path(folder)) as server:
            server.prepare()
            setup.use(server)
            yield


def _filled(*, keeps_wal: bool) -> Fault:
    """Return the fault that tables cannot grow or, if the server *keeps_wal*, that it cannot go on."""

    @contextmanager
    def fault(stage: Stage) -> Iterator[None]:
        server = stage.server
        assert isinstance(server, _SmallVolume)
        if keeps_wal:
            server.run(_KEEP_WAL)
        with kept_full(server.volume):
            eventually(
                (lambda: _has_no_wal(server)) if keeps_wal else _tables_cannot_grow(stage, server), _WITHIN
            )
            yield
        eventually(lambda: _is_back(server), _WITHIN)
        if keeps_wal:
            server.run(_KEEP_NO_WAL)

    return fault


def _tables_cannot_grow(stage: Stage, server: _SmallVolume) -> Callable[[], bool]:
    """Return whether the service has received that error since now, or no connection is possible."""
    before = stage.service.log.count(_NOTED)

    def noticed() -> bool:
        _fill(server.volume)
        return stage.service.log.count(_NOTED) > before or not server.accepts()

    return noticed


def _has_no_wal(server: _SmallVolume) -> bool:
    """Use up what WAL there is room for; whether the server accepts no connection any more for want of it."""
    _fill(server.volume)
    with suppress(psycopg.OperationalError):
        server.run(_NEXT_WAL_FILE)
    return not server.accepts()


def _is_back(server: _SmallVolume) -> bool:
    """Whether it accepts connections again; one that has ended, as it may have, is started."""
    if not server.processes():
        server.start()
    return server.accepts()


CELLS = [
    Cell("volume of the tables", "is full", _filled(keeps_wal=False), OUTAGE, setup=_small_volume),
    Cell("volume of the WAL", "is full", _filled(keeps_wal=True), DOWN, setup=_small_volume),
]
