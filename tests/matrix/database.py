"""PostgreSQL: its processes, its connections, its locks, and the network before it."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil
import psycopg

from tests.matrix.cell import Bound, Cell
from tests.matrix.stage import DATABASE_TIMEOUT, Stage
from tests.support.waiting import eventually

_CROWD = 48
_LONGER = DATABASE_TIMEOUT * 1.5


@contextmanager
def kill_backend(stage: Stage) -> Iterator[None]:
    """Kill a backend, after which PostgreSQL ends the others and recovers."""
    backends = [process for process in stage.server.processes()[1:] if _serves_a_client(process)]
    if backends:
        stage.server.kill_backend(stage.chance.choice(backends).pid)
    eventually(stage.server.accepts)
    yield


def _serves_a_client(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return " stackmgr " in " ".join(process.cmdline())
    return False


@contextmanager
def crash(stage: Stage) -> Iterator[None]:
    stage.server.crash()
    yield
    stage.server.start()
    eventually(stage.server.accepts)


@contextmanager
def restart(stage: Stage) -> Iterator[None]:
    stage.server.stop(stage.chance.choice((signal.SIGINT, signal.SIGQUIT)))
    stage.server.start()
    eventually(stage.server.accepts)
    yield


@contextmanager
def freeze(stage: Stage) -> Iterator[None]:
    with stage.server.frozen():
        yield


@contextmanager
def partition(stage: Stage) -> Iterator[None]:
    """Let nothing through between the service and its database, without a word to either."""
    stage.proxy.hold()
    try:
        yield
    finally:
        stage.proxy.release()


@contextmanager
def cut(stage: Stage) -> Iterator[None]:
    stage.proxy.cut()
    yield


@contextmanager
def commit_carelessly(stage: Stage) -> Iterator[None]:
    """Commit asynchronously, and crash."""
    with stage.server.careless():
        time.sleep(0.5)
        with crash(stage):
            yield


@contextmanager
def hold_rows(stage: Stage) -> Iterator[None]:
    """Keep every stack locked for longer than anybody waits."""
    with psycopg.connect(stage.server.url()) as connection:
        connection.execute(b"SELECT FROM stackmgr.stacks FOR UPDATE")
        yield


_DOWN = Bound("500 503", ready="fails")
_BRIEF = Bound("500 503", ready="may fail")

CELLS = [
    Cell("backend", "dies", kill_backend, _BRIEF, lasts=0.0, mixed=True),
    Cell("database", "dies", crash, _DOWN, mixed=True, short=True),
    Cell("database (restart)", "dies", restart, _BRIEF, lasts=0.0, mixed=True),
    Cell("database", "hangs", freeze, _DOWN, lasts=_LONGER, mixed=True, short=True),
    Cell("network to the database", "hangs", partition, _DOWN, lasts=_LONGER, mixed=True),
    Cell("network to the database", "dies", cut, _BRIEF, lasts=0.0, mixed=True),
    Cell("rows", "hangs", hold_rows, Bound("500 503"), lasts=DATABASE_TIMEOUT, mixed=True),
    # More clients than connections: they wait for one another, so that only each request is bounded.
    Cell(
        *("connections of the pool", "is full", hold_rows, Bound("500 503", slowest=None)),
        lasts=DATABASE_TIMEOUT,
        clients=_CROWD,
        short=True,
    ),
    Cell("commit (control)", "lies", commit_carelessly, _DOWN, control=True),
]
