"""Cells of PostgreSQL's processes: each stops, is killed, or is shut down, and the server returns."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil

from stackmgr.errors import CommandError
from tests.matrix.cell import Bound, Cell, Fault
from tests.matrix.stage import DATABASE_TIMEOUT, Stage
from tests.support.waiting import eventually

# Longer than a request waits for the database.
LONG = DATABASE_TIMEOUT * 1.5

OUTAGE = Bound("500 503", ready="may fail")
# One request for each backend, and the probe of readiness.
_ONE_REQUEST = Bound("500 503", most=2, ready="may fail")


def processes(stage: Stage, title: str) -> list[psutil.Process]:
    """Return the server's processes whose title contains *title*."""
    found = []
    for process in stage.server.processes()[1:]:
        with suppress(psutil.NoSuchProcess):
            if title in " ".join(process.cmdline()):
                found.append(process)
    return found


def _suspends(title: str, most: int = 64) -> Fault:
    """Return the fault in which processes of this title stop, at most so many."""

    @contextmanager
    def fault(stage: Stage) -> Iterator[None]:
        stopped = eventually(lambda: processes(stage, title))[:most]
        for process in stopped:
            process.suspend()
        try:
            yield
        finally:
            for process in stopped:
                process.resume()

    return fault


def _kills(title: str) -> Fault:
    """Return the fault in which one such process is killed, and the server restarts all of them."""

    @contextmanager
    def fault(stage: Stage) -> Iterator[None]:
        victim = eventually(lambda: processes(stage, title))[0]
        stage.server.kill_backend(victim.pid)
        yield
        eventually(stage.server.accepts)

    return fault


@contextmanager
def _postmaster_hangs(stage: Stage) -> Iterator[None]:
    postmaster = stage.server.processes()[0]
    postmaster.suspend()
    try:
        yield
    finally:
        postmaster.resume()


@contextmanager
def _postmaster_dies(stage: Stage) -> Iterator[None]:
    children = stage.server.processes()[1:]
    assert stage.server.process is not None
    stage.server.process.kill()
    stage.server.process.wait()
    try:
        yield
    finally:
        psutil.wait_procs(children, 30)
        start(stage)


def _shut_down(mode: signal.Signals) -> Fault:
    @contextmanager
    def fault(stage: Stage) -> Iterator[None]:
        stage.server.stop(mode)
        try:
            yield
        finally:
            start(stage)

    return fault


@contextmanager
def _smart_shutdown(stage: Stage) -> Iterator[None]:
    """Ask for a shutdown that waits for clients, as the service's pool will not let it happen."""
    stage.server.processes()[0].send_signal(signal.SIGTERM)
    try:
        yield
    finally:
        stage.server.stop()
        start(stage)


def start(stage: Stage) -> None:
    """Start the server, again if shared memory of the former one is still in use."""

    def started() -> bool:
        with suppress(CommandError):
            stage.server.start()
            return True
        return False

    eventually(started)
    eventually(stage.server.accepts)


_BACKEND = " stackmgr "

CELLS = (
    Cell("database (fast shutdown)", "dies", _shut_down(signal.SIGINT), OUTAGE),
    Cell("database (immediate shutdown)", "dies", _shut_down(signal.SIGQUIT), OUTAGE),
    Cell("database (smart shutdown)", "dies", _smart_shutdown, OUTAGE, lasts=LONG),
    Cell("postmaster", "dies", _postmaster_dies, OUTAGE, lasts=LONG),
    Cell("postmaster", "hangs", _postmaster_hangs, OUTAGE, lasts=LONG),
    Cell("backend", "hangs", _suspends(_BACKEND, 1), _ONE_REQUEST, lasts=LONG),
    Cell("checkpointer", "dies", _kills("checkpointer"), OUTAGE, lasts=0),
    Cell("checkpointer", "hangs", _suspends("checkpointer"), lasts=LONG),
    Cell("walwriter", "dies", _kills("walwriter"), OUTAGE, lasts=0),
    Cell("walwriter", "hangs", _suspends("walwriter"), lasts=LONG),
    Cell("background writer", "hangs", _suspends("background writer"), lasts=LONG),
    Cell("autovacuum launcher", "hangs", _suspends("autovacuum launcher"), lasts=LONG),
    Cell("io workers", "hangs", _suspends("io worker"), lasts=LONG),
)

EMPTY = {
    "checkpointer: is slow": "a checkpoint is as slow as the disk",
    "postmaster: is full": "see max_connections",
}
