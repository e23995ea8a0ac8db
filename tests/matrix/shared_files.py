"""Files that the running service writes: metrics, and the heartbeats of workers."""

import os
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path

from tests.matrix.cell import CLIENTS, RECOVERY, Bound, Cell
from tests.matrix.stage import Setup, Stage
from tests.matrix.volume import kept_full, mounted


def _metrics(folder: Path) -> Path:
    return folder / "volume" / "metrics"


def _heartbeats(folder: Path) -> Path:
    return folder / "volume" / "heartbeats"


@contextmanager
def on_a_volume(setup: Setup) -> Iterator[None]:
    """Keep metrics and heartbeats on a small volume."""
    volume = setup.folder / "volume"
    volume.mkdir()
    with mounted(volume, "1m,nr_inodes=64"):
        _metrics(setup.folder).mkdir()
        _heartbeats(setup.folder).mkdir()
        setup.environment["STACKMGR_METRICS_DIR"] = str(_metrics(setup.folder))
        setup.configuration += f"\nworker_tmp_dir = {str(_heartbeats(setup.folder))!r}\n"
        yield


@contextmanager
def in_a_folder(setup: Setup) -> Iterator[None]:
    """Keep heartbeats in a folder."""
    _heartbeats(setup.folder).mkdir(parents=True)
    setup.configuration += f"\nworker_tmp_dir = {str(_heartbeats(setup.folder))!r}\n"
    yield


@contextmanager
def remove_metrics(stage: Stage) -> Iterator[None]:
    """Remove the folder, and end a worker: the next one makes it again."""
    folder = _metrics(stage.folder)
    shutil.rmtree(folder)
    stage.a_worker().terminate()
    yield


@contextmanager
def falsify_metrics(stage: Stage) -> Iterator[None]:
    """Overwrite each file, and end a worker: the next one continues its files."""
    for path in _metrics(stage.folder).glob("*.db"):
        with path.open("r+b") as file:
            file.write(b"[[]]garbage")
    stage.a_worker().terminate()
    yield


@contextmanager
def truncate_metrics(stage: Stage) -> Iterator[None]:
    """Truncate each file, which ends the workers that have mapped its pages (SIGBUS)."""
    for path in _metrics(stage.folder).glob("*.db"):
        os.truncate(path, 10)
    stage.a_worker().terminate()
    yield


def fill_volume(stage: Stage) -> AbstractContextManager[None]:
    return kept_full(stage.folder / "volume")


@contextmanager
def use_up_inodes(stage: Stage) -> Iterator[None]:
    """Leave no room for a new file, and kill a worker: the next one has no heartbeat."""
    folder = stage.folder / "volume" / "inodes"
    folder.mkdir()
    worker = stage.a_worker()
    master = Path("/proc") / str(worker.ppid()) / "fd"
    with ExitStack() as held:
        # Open, the file of the worker that ends makes no room for that of the next one.
        for descriptor in master.iterdir():
            if str(_heartbeats(stage.folder)) in str(descriptor.readlink()):
                held.enter_context(descriptor.open("rb"))
        with suppress(OSError):
            for number in range(1000):
                (folder / str(number)).touch()
        worker.kill()
        yield
    shutil.rmtree(folder)


@contextmanager
def remove_heartbeats(stage: Stage) -> Iterator[None]:
    """Remove the folder, and kill a worker: the next one has no heartbeat."""
    folder = _heartbeats(stage.folder)
    folder.rename(folder.with_name("elsewhere"))
    stage.a_worker().kill()
    yield
    folder.with_name("elsewhere").rename(folder)


@contextmanager
def remove_settings(stage: Stage) -> Iterator[None]:
    """Remove gunicorn's settings, and kill a worker: the master has read them."""
    path = stage.folder / "deploy" / "gunicorn.conf.py"
    text = path.read_text()
    path.unlink()
    stage.a_worker().kill()
    yield
    path.write_text(text)


_NOT_STARTED = "A worker could not be started"
_CUT = Bound("cut", CLIENTS)

CELLS = [
    Cell("metrics", "dies", remove_metrics, setup=on_a_volume, lasts=3.0),
    Cell("metrics", "lies", falsify_metrics, setup=on_a_volume, lasts=2.0),
    Cell(
        *("metrics (truncated)", "lies", truncate_metrics, Bound("cut", CLIENTS, live=RECOVERY)),
        setup=on_a_volume,
        lasts=2.0,
    ),
    Cell("volume of metrics and heartbeats", "is full", fill_volume, setup=on_a_volume, lasts=3.0),
    Cell(
        *("heartbeats (no file)", "is full", use_up_inodes, _CUT),
        setup=on_a_volume,
        lasts=3.0,
        trace=_NOT_STARTED,
        short=True,
    ),
    Cell(
        *("heartbeats", "dies", remove_heartbeats, _CUT),
        setup=in_a_folder,
        lasts=3.0,
        trace=_NOT_STARTED,
        short=True,
    ),
    Cell("gunicorn's settings", "dies", remove_settings, _CUT, lasts=2.0),
]

EMPTY = {
    "heartbeats: lies": "a heartbeat is the time of an open file without a name, which only its worker has",
    "heartbeats: hangs": "they are in memory",
    "metrics: hangs": "they are in memory, as deploy/RUNBOOK.md says",
}
