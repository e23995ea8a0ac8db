"""Standard error, where the log goes: its reader, its disk, and none at all."""

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.matrix.cell import Cell
from tests.matrix.stage import Setup, Stage
from tests.matrix.volume import kept_full, mounted

_PIPE_BYTES = 4096


@dataclass
class Reader:
    """Reads a pipe in a thread: at full speed, slowly, not at all, or until it closes its end."""

    descriptor: int
    pause: float = 0.0
    is_reading: threading.Event = field(default_factory=threading.Event)
    is_closed: bool = False

    def read(self) -> None:
        with suppress(OSError), os.fdopen(self.descriptor, "rb", buffering=0) as pipe:
            while not self.is_closed and self.is_reading.wait() and pipe.read(512):
                time.sleep(self.pause)


_readers: dict[Path, Reader] = {}


@contextmanager
def to_a_pipe(setup: Setup) -> Iterator[None]:
    """Let a thread of this process read the log from a small pipe, as journald does."""
    read_end, write_end = os.pipe()
    fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    reader = _readers[setup.folder] = Reader(read_end)
    reader.is_reading.set()
    thread = threading.Thread(target=reader.read, daemon=True)
    thread.start()
    setup.stderr = write_end
    try:
        yield
    finally:
        os.close(write_end)
        reader.is_reading.set()
        thread.join(5)
        del _readers[setup.folder]


@contextmanager
def stall_reader(stage: Stage) -> Iterator[None]:
    reader = _readers[stage.folder]
    reader.is_reading.clear()
    yield
    reader.is_reading.set()


@contextmanager
def slow_reader(stage: Stage) -> Iterator[None]:
    reader = _readers[stage.folder]
    reader.pause = 0.1
    yield
    reader.pause = 0.0


@contextmanager
def end_reader(stage: Stage) -> Iterator[None]:
    """Close the reading end for good: no reader can return to a pipe."""
    _readers[stage.folder].is_closed = True
    yield


@contextmanager
def to_a_volume(setup: Setup) -> Iterator[None]:
    """Write the log to a volume of its own."""
    volume = setup.folder / "log-volume"
    volume.mkdir()
    with mounted(volume, "1m"), (volume / "log").open("ab") as log:
        setup.stderr = log.fileno()
        yield


def fill_volume(stage: Stage) -> AbstractContextManager[None]:
    return kept_full(stage.folder / "log-volume")


def closed(setup: Setup) -> Iterator[None]:
    """Give the service a standard error that is open for reading only, so that each write fails."""
    with Path(os.devnull).open("rb") as file:
        setup.stderr = file.fileno()
        yield


@contextmanager
def nothing(_: Stage) -> Iterator[None]:
    yield


CELLS = [
    Cell("reader of the log", "hangs", stall_reader, setup=to_a_pipe, lasts=3.0, short=True),
    Cell("reader of the log", "is slow", slow_reader, setup=to_a_pipe, lasts=3.0),
    Cell("reader of the log", "dies", end_reader, setup=to_a_pipe),
    Cell("disk of the log", "is full", fill_volume, setup=to_a_volume, lasts=3.0),
    Cell("standard error", "dies", nothing, setup=contextmanager(closed), lasts=3.0),
]

EMPTY = {"reader of the log: lies": "the service reads nothing of it"}
