"""Cells of PostgreSQL as a whole: it dies, hangs, restarts, or forgets, and the pool runs out."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psutil
import psycopg

from tests.faults.cell import DOWN, OUTAGE, Bound, Cell, Fault
from tests.faults.stage import DATABASE_TIMEOUT, Stage
from tests.support.waiting import eventually

# Longer than a request waits for the database.
LONG = DATABASE_TIMEOUT * 1.5
_CROWD = 48
# Bytes of WAL that only memory holds when a careless server crashes: some writes, unless another transaction
# flushes them at the last moment.
_UNFLUSHED, _CRASHES = 8000, 3
_BACKEND = " stackmgr "


def execute(stage: Stage, *statements: str) -> None:
    """Run *statements* as the superuser, each in a transaction of its own."""
    with psycopg.connect(stage.server.url(), autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def holds(statement: str) -> Fault:
    """Return the fault in which a transaction of somebody else has executed *statement* and stays open."""

    @contextmanager
    def fault(stage: Stage) -> Iterator[None]:
        with psycopg.connect(stage.server.url()) as connection:
            connection.execute(statement.encode())
            yield

    return fault


def _processes(stage: Stage, title: str) -> list[psutil.Process]:
    """Return the server's processes whose title contains *title*."""
    found = []
    for process in stage.server.processes()[1:]:
        with suppress(psutil.NoSuchProcess):
            if title in " ".join(process.cmdline()):
                found.append(process)
    return found


@contextmanager
def _kill_backend(stage: Stage) -> Iterator[None]:
    """Kill a backend, after which PostgreSQL ends the others and recovers."""
    if backends := _processes(stage, _BACKEND):
        stage.server.kill_backend(stage.chance.choice(backends).pid)
    eventually(stage.server.accepts)
    yield


def _suspends(title: str, most: int) -> Fault:
    """Return the fault in which processes of this title stop, at most so many."""

    @contextmanager
    def fault(stage: Stage) -> Iterator[None]:
        stopped = eventually(lambda: _processes(stage, title))[:most]
        for process in stopped:
            process.suspend()
        try:
            yield
        finally:
            for process in stopped:
                process.resume()

    return fault


@contextmanager
def crash(stage: Stage) -> Iterator[None]:
    stage.server.crash()
    yield
    stage.server.start()
    eventually(stage.server.accepts)


@contextmanager
def _restart(stage: Stage) -> Iterator[None]:
    stage.server.stop(stage.chance.choice((signal.SIGINT, signal.SIGQUIT)))
    stage.server.start()
    eventually(stage.server.accepts)
    yield


@contextmanager
def _freeze(stage: Stage) -> Iterator[None]:
    with stage.server.frozen():
        yield


@contextmanager
def _commit_carelessly(stage: Stage) -> Iterator[None]:
    """Commit asynchronously, and crash, each time while memory alone has some of the WAL."""
    with stage.server.careless():
        for _ in range(_CRASHES - 1):
            _await_unflushed(stage)
            with crash(stage):
                pass
        _await_unflushed(stage)
        with crash(stage):
            yield


def _await_unflushed(stage: Stage) -> None:
    with psycopg.connect(stage.server.url(), autocommit=True) as connection:

        def unflushed() -> int:
            query = b"SELECT pg_current_wal_insert_lsn() - pg_current_wal_flush_lsn()"
            row: Any = connection.execute(query).fetchone()
            return int(row[0])

        eventually(lambda: unflushed() > _UNFLUSHED, message="each write was flushed")


_ONE_REQUEST = Bound("500 503", most=2, ready="may fail")  # that of the backend, and the probe of readiness
_ROWS = "SELECT FROM stackmgr.stacks FOR UPDATE"

CELLS = [
    Cell("backend", "dies", _kill_backend, OUTAGE, lasts=0.0, mixed=True),
    Cell("backend", "hangs", _suspends(_BACKEND, 1), _ONE_REQUEST, lasts=LONG),
    Cell("io workers", "hangs", _suspends("io worker", 64), lasts=LONG),
    Cell("database", "dies", crash, DOWN, mixed=True, short=True),
    Cell("database (restart)", "dies", _restart, OUTAGE, lasts=0.0, mixed=True),
    Cell("database", "hangs", _freeze, DOWN, lasts=LONG, mixed=True, short=True),
    # More clients than connections: they wait for one another, so that only each request is bounded.
    Cell(
        *("connections of the pool", "is full", holds(_ROWS), Bound("500 503", slowest=None)),
        lasts=DATABASE_TIMEOUT,
        clients=_CROWD,
        short=True,
    ),
    Cell("commit (control)", "lies", _commit_carelessly, DOWN, control="R3"),
]
