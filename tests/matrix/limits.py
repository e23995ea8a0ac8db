"""Limits of the kernel: descriptors, memory and tasks of a worker or of the service."""

import os
import resource
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil

from tests.matrix.cell import Bound, Cell, Fault
from tests.matrix.clients import connect
from tests.matrix.stage import NoPlace, Stage

_TASKS = Path("/sys/fs/cgroup/pids")
_NOT_STARTED = "A worker could not be started"
_ROOM_BYTES = 16 * 1024 * 1024


@contextmanager
def limited(process: psutil.Process, limit: int, value: int) -> Iterator[None]:
    """Lower the soft limit of a process until the context ends."""
    before, hard = resource.prlimit(process.pid, limit)
    resource.prlimit(process.pid, limit, (value, hard))
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            resource.prlimit(process.pid, limit, (before, hard))


def few_descriptors(*, free: int, connections: int) -> Fault:
    """Return the fault that *connections* are opened and workers have *free* descriptors."""

    @contextmanager
    def fault(stage: Stage) -> Iterator[None]:
        with ExitStack() as undo:
            for worker in stage.workers():
                used = max(int(path.name) for path in Path(f"/proc/{worker.pid}/fd").iterdir()) + 1
                undo.enter_context(limited(worker, resource.RLIMIT_NOFILE, used + free))
            for _ in range(connections):
                undo.enter_context(connect(stage.service.port))
            yield

    return fault


@contextmanager
def little_memory(stage: Stage) -> Iterator[None]:
    """Let a worker map no more than it has and 16 MiB, and use that up."""
    worker = stage.a_worker()
    with limited(worker, resource.RLIMIT_AS, worker.memory_info().vms + _ROOM_BYTES):
        stage.misbehave(worker, "hoard")
        yield


def no_more_tasks(*, kill: bool) -> Fault:
    """Return the fault that neither a thread nor a process can be started; a worker may be *kill*ed."""

    @contextmanager
    def fault(stage: Stage) -> Iterator[None]:
        worker = stage.a_worker()
        group = _TASKS / f"stackmgr-matrix-{os.getpid()}"
        try:
            group.mkdir()
        except OSError as ex:
            raise NoPlace(f"the number of tasks cannot be limited here: {ex.strerror}") from ex
        try:
            for process in (psutil.Process(stage.service.pid), *stage.workers()):
                (group / "cgroup.procs").write_text(str(process.pid))
            (group / "pids.max").write_text((group / "pids.current").read_text())
            if kill:
                worker.kill()
                # Another task takes its place, or the new worker would.
                (group / "pids.max").write_text("1")
            yield
        finally:
            (group / "pids.max").write_text("max")
            for pid in (group / "cgroup.procs").read_text().split():
                with suppress(OSError):
                    (_TASKS / "cgroup.procs").write_text(pid)
            group.rmdir()

    return fault


CELLS = [
    Cell(
        *(
            "descriptors",
            "is full",
            few_descriptors(free=20, connections=200),
            Bound("cut", ready="may fail"),
        ),
        lasts=3.0,
        short=True,
    ),
    Cell(
        *("memory of a worker", "is full", little_memory, Bound("500 cut", ready="may fail", live=1.0)),
        lasts=3.0,
    ),
    Cell("tasks", "is full", no_more_tasks(kill=False), Bound("500", ready="may fail"), lasts=3.0),
    Cell(
        "tasks (a worker dies)",
        "is full",
        no_more_tasks(kill=True),
        Bound("500 cut", ready="may fail"),
        lasts=3.0,
    ),
]
