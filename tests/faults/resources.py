"""Cells of what runs out or breaks around the service: descriptors, connections, volumes, the log."""

import fcntl
import os
import resource
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path

from tests.faults.cell import CLIENTS, ONE_WORKER, RECOVERY, Bound, Cell
from tests.faults.stage import NoPlace, Setup, Stage

_FREE_DESCRIPTORS, _CONNECTIONS = 20, 200
_SILENT = 1500
_PIPE_BYTES = 4096
_PIECES = (1 << 20, 1 << 12)
_NOT_STARTED = "A worker could not be started"


def _fill(volume: Path) -> None:
    """Leave no room on *volume*, the root of a file system, whatever has been freed since the last time."""
    with (volume / "ballast").open("ab") as ballast:
        for piece in _PIECES:
            with suppress(OSError):
                while True:
                    os.posix_fallocate(ballast.fileno(), os.fstat(ballast.fileno()).st_size, piece)


@contextmanager
def _kept_full(volume: Path) -> Iterator[None]:
    _fill(volume)
    try:
        yield
    finally:
        (volume / "ballast").unlink()


@contextmanager
def _mounted(folder: Path, options: str) -> Iterator[None]:
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


def _connect(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=5)
    connection.settimeout(0)
    return connection


@contextmanager
def _few_descriptors(stage: Stage) -> Iterator[None]:
    """Leave workers fewer descriptors than there are connections."""
    with ExitStack() as undo:
        for worker in stage.workers():
            used = max(int(path.name) for path in Path(f"/proc/{worker.pid}/fd").iterdir()) + 1
            before = resource.prlimit(worker.pid, resource.RLIMIT_NOFILE)
            undo.callback(_set_limit, worker.pid, before)
            _set_limit(worker.pid, (used + _FREE_DESCRIPTORS, before[1]))
        for _ in range(_CONNECTIONS):
            undo.enter_context(_connect(stage.service.port))
        yield


def _set_limit(pid: int, limits: tuple[int, int]) -> None:
    with suppress(ProcessLookupError):
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)


@contextmanager
def _be_silent(stage: Stage) -> Iterator[None]:
    """Open more connections than either listener keeps, and send nothing."""
    with ExitStack() as undo:
        for port, number in ((stage.service.port, _SILENT), (stage.service.admin_port, _CONNECTIONS)):
            for _ in range(number):
                undo.enter_context(_connect(port))
        yield


@contextmanager
def _on_a_volume(setup: Setup) -> Iterator[None]:
    """Keep metrics and heartbeats on a small volume."""
    volume = setup.folder / "volume"
    volume.mkdir()
    with _mounted(volume, "1m,nr_inodes=64"):
        (volume / "metrics").mkdir()
        setup.environment["STACKMGR_METRICS_DIR"] = str(volume / "metrics")
        _keep_heartbeats(setup)
        yield


@contextmanager
def _in_a_folder(setup: Setup) -> Iterator[None]:
    (setup.folder / "volume").mkdir()
    _keep_heartbeats(setup)
    yield


def _keep_heartbeats(setup: Setup) -> None:
    folder = setup.folder / "volume" / "heartbeats"
    folder.mkdir()
    setup.configuration += f"\nworker_tmp_dir = {str(folder)!r}\n"


@contextmanager
def _truncate_metrics(stage: Stage) -> Iterator[None]:
    """Truncate each file, which ends the workers that have mapped its pages (SIGBUS)."""
    for path in (stage.folder / "volume" / "metrics").glob("*.db"):
        os.truncate(path, 10)
    stage.a_worker().terminate()
    yield


def _fill_volume(stage: Stage) -> AbstractContextManager[None]:
    return _kept_full(stage.folder / "volume")


@contextmanager
def _use_up_inodes(stage: Stage) -> Iterator[None]:
    """Leave no room for a new file, and kill a worker: the next one has no heartbeat."""
    folder = stage.folder / "volume" / "inodes"
    folder.mkdir()
    worker = stage.a_worker()
    master = Path("/proc") / str(worker.ppid()) / "fd"
    with ExitStack() as held:
        # Open, the file of the worker that ends makes no room for that of the next one.
        for descriptor in master.iterdir():
            if "/volume/heartbeats" in str(descriptor.readlink()):
                held.enter_context(descriptor.open("rb"))
        with suppress(OSError):
            for number in range(1000):
                (folder / str(number)).touch()
        worker.kill()
        yield
    shutil.rmtree(folder)


@contextmanager
def _remove_heartbeats(stage: Stage) -> Iterator[None]:
    """Remove the folder, and kill a worker: the next one has no heartbeat."""
    folder = stage.folder / "volume" / "heartbeats"
    folder.rename(folder.with_name("elsewhere"))
    stage.a_worker().kill()
    yield
    folder.with_name("elsewhere").rename(folder)


# Of each stage, by its folder, whether its log is read.
_is_read: dict[Path, threading.Event] = {}


@contextmanager
def _log_to_a_pipe(setup: Setup) -> Iterator[None]:
    """Read the log from a small pipe in a thread, as journald does."""
    read_end, write_end = os.pipe()
    fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    is_read = _is_read[setup.folder] = threading.Event()
    is_read.set()

    def read() -> None:
        with os.fdopen(read_end, "rb", buffering=0) as pipe:
            while is_read.wait() and pipe.read(512):
                pass

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    setup.stderr = write_end
    try:
        yield
    finally:
        os.close(write_end)
        is_read.set()
        thread.join(5)
        del _is_read[setup.folder]


@contextmanager
def _stall_reader(stage: Stage) -> Iterator[None]:
    _is_read[stage.folder].clear()
    yield
    _is_read[stage.folder].set()


@contextmanager
def _log_to_a_volume(setup: Setup) -> Iterator[None]:
    volume = setup.folder / "volume"
    volume.mkdir()
    with _mounted(volume, "1m"), (volume / "log").open("ab") as log:
        setup.stderr = log.fileno()
        yield


_METRICS = Bound("cut", CLIENTS, live=RECOVERY)

CELLS = [
    Cell(
        *("descriptors", "is full", _few_descriptors, Bound("cut", ready="may fail")), lasts=3.0, short=True
    ),
    Cell("clients (silent)", "hangs", _be_silent, lasts=3.0),
    Cell("metrics (truncated)", "lies", _truncate_metrics, _METRICS, setup=_on_a_volume, lasts=2.0),
    Cell("volume of metrics and heartbeats", "is full", _fill_volume, setup=_on_a_volume, lasts=3.0),
    Cell(
        *("heartbeats (no file)", "is full", _use_up_inodes, ONE_WORKER),
        setup=_on_a_volume,
        lasts=3.0,
        trace=_NOT_STARTED,
        short=True,
    ),
    Cell(
        *("heartbeats", "dies", _remove_heartbeats, ONE_WORKER),
        setup=_in_a_folder,
        lasts=3.0,
        trace=_NOT_STARTED,
    ),
    Cell("reader of the log", "hangs", _stall_reader, setup=_log_to_a_pipe, lasts=3.0, short=True),
    Cell("disk of the log", "is full", _fill_volume, setup=_log_to_a_volume, lasts=3.0),
]
