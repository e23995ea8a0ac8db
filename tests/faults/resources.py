"""Cells of the volume of metrics and heartbeats."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.faults.cell import ONE_WORKER, Cell
from tests.faults.stage import NoPlace, Stage
from tests.support.processes import completed

_PIECES = (1 << 20, 1 << 12)


@contextmanager
def _with_volume(stage: Stage) -> Iterator[None]:
    """Keep metrics and heartbeats on a small volume in memory.  Raises NoPlace where that cannot be."""
    if os.geteuid() != 0:
        raise NoPlace("only root can mount a volume")
    volume = stage.folder / "volume"
    volume.mkdir()
    mount = ("mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", volume)
    made = completed(mount)
    if made.returncode != 0:
        raise NoPlace(f"a volume cannot be mounted here: {made.stderr.strip()}")
    try:
        (volume / "metrics").mkdir()
        stage.environment["STACKMGR_METRICS_DIR"] = str(volume / "metrics")
        _keep_heartbeats(stage, volume)
        yield
    finally:
        subprocess.run(["umount", "--lazy", volume], check=True)  # noqa: S607 - wherever it is


@contextmanager
def _with_heartbeats(stage: Stage) -> Iterator[None]:
    """Keep heartbeats in a folder that can be removed."""
    _keep_heartbeats(stage, stage.folder)
    yield


def _keep_heartbeats(stage: Stage, where: Path) -> None:
    (where / "heartbeats").mkdir()
    stage.configuration += f"\nworker_tmp_dir = {str(where / 'heartbeats')!r}\n"


@contextmanager
def _fill_volume(stage: Stage) -> Iterator[None]:
    path = stage.folder / "volume" / "ballast"
    with path.open("ab") as ballast:
        for piece in _PIECES:
            with suppress(OSError):
                while True:
                    os.posix_fallocate(ballast.fileno(), os.fstat(ballast.fileno()).st_size, piece)
    try:
        yield
    finally:
        path.unlink()


def _truncate_metrics(stage: Stage) -> None:
    """Truncate each file, which ends the workers that have mapped its pages (SIGBUS)."""
    for path in (stage.folder / "volume" / "metrics").glob("*.db"):
        os.truncate(path, 10)
    stage.a_worker().terminate()


@contextmanager
def _remove_heartbeats(stage: Stage) -> Iterator[None]:
    """Remove the folder, and kill a worker: the next one has no heartbeat."""
    folder = stage.folder / "heartbeats"
    folder.rename(folder.with_name("elsewhere"))
    stage.a_worker().kill()
    yield
    folder.with_name("elsewhere").rename(folder)


CELLS = [
    Cell("metrics (truncated)", "lies", _truncate_metrics, ONE_WORKER, setup=_with_volume, lasts=2.0),
    Cell(*("volume of metrics and heartbeats", "is full", _fill_volume), setup=_with_volume, lasts=3.0),
    Cell("heartbeats", "dies", _remove_heartbeats, ONE_WORKER,
         setup=_with_heartbeats, lasts=3.0, trace="A worker could not be started", short=True),
]  # fmt: skip
