"""Cells of PostgreSQL and of the network to it, which is the stage's proxy."""

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any

import psutil
import psycopg

from tests.faults.cell import DOWN, OUTAGE, Bound, Cell, Fault
from tests.faults.stage import DATABASE_TIMEOUT, Stage, suspended
from tests.support.postgres import standby_by
from tests.support.tcp_proxy import Proxy
from tests.support.waiting import eventually

# Longer than a request waits for the database.
LONG = DATABASE_TIMEOUT * 1.5
_BACKEND = " stackmgr "
_STREAMING = b"SELECT sync_state FROM pg_catalog.pg_stat_replication WHERE state = 'streaming'"
_REVISIONS = b"SELECT count(*) FROM stackmgr.stack_revisions"
# How many revisions a standby that lags is to lack at least.
_BEHIND = 20
# How long clients go on before the primary dies, and a lagging standby falls behind, in seconds.
_MEANWHILE = 0.5


@contextmanager
def _lock(stage: Stage, table: str) -> Iterator[None]:
    with psycopg.connect(stage.server.url()) as connection:
        connection.execute(f"LOCK TABLE stackmgr.{table} IN ACCESS EXCLUSIVE MODE".encode())
        yield


def _processes(stage: Stage, title: str) -> list[psutil.Process]:
    found = []
    for process in stage.server.processes()[1:]:
        with suppress(psutil.NoSuchProcess):
            if title in " ".join(process.cmdline()):
                found.append(process)
    return found


def _kill_backend(stage: Stage) -> None:
    if backends := _processes(stage, _BACKEND):
        stage.server.kill_backend(stage.chance.choice(backends).pid)
    eventually(stage.server.accepts)


def _suspends(title: str, most: int) -> Fault:
    return lambda stage: suspended(eventually(lambda: _processes(stage, title))[:most])


@contextmanager
def _crash(stage: Stage) -> Iterator[None]:
    stage.server.crash()
    yield
    stage.server.start()
    eventually(stage.server.accepts)


def _restart(stage: Stage) -> None:
    stage.server.stop(stage.chance.choice((signal.SIGINT, signal.SIGQUIT)))
    stage.server.start()
    eventually(stage.server.accepts)


@contextmanager
def _primary_dies(stage: Stage, *, synchronous: bool) -> Iterator[None]:
    """Let the primary die for good, with or without a *synchronous* standby, which is then promoted."""
    with Proxy(stage.server.socket_path) as link, ExitStack() as undo:
        standby = undo.enter_context(standby_by(link.port))
        with psycopg.connect(stage.server.url(), autocommit=True) as primary:

            def one(query: bytes) -> Any:
                row: Any = primary.execute(query).fetchone()
                return row and row[0]

            if synchronous:
                primary.execute(b"ALTER SYSTEM SET synchronous_standby_names = 'standby'")
                primary.execute(b"SELECT pg_reload_conf()")
            eventually(lambda: one(_STREAMING) == ("sync" if synchronous else "async"))
            if not synchronous:
                link.hold()
                before = one(_REVISIONS)
                eventually(lambda: one(_REVISIONS) >= before + _BEHIND, 60)
        time.sleep(_MEANWHILE)
        stage.server.crash()
        yield
        with psycopg.connect(standby.url(), autocommit=True) as connection:
            connection.execute(b"SELECT pg_promote()")
        stage.replace_server(standby, undo.pop_all())


@contextmanager
def _hold(stage: Stage, *, only_backwards: bool = False) -> Iterator[None]:
    stage.proxy.hold(only_backwards=only_backwards)
    try:
        yield
    finally:
        stage.proxy.release()


@contextmanager
def _delay(stage: Stage) -> Iterator[None]:
    stage.proxy.delay = 0.1
    try:
        yield
    finally:
        stage.proxy.delay = 0.0


_NETWORK = "network to the database"
# A new connection needs several round trips, which the first requests do not wait for.
_SLOW = Bound("503", ready="may fail")
_ONE_REQUEST = Bound("500 503", most=2, ready="may fail")  # that of the backend, and the probe of readiness
# The statement of a known key verifies it: a read that fails is 503, as a verification is, a write 500.
_FAILED, _UNREADY = Bound("500 503"), Bound(ready="fails")
CELLS = [
    Cell("backend", "dies", _kill_backend, OUTAGE, lasts=0.0, mixed=True),
    Cell("backend", "hangs", _suspends(_BACKEND, 1), _ONE_REQUEST, lasts=LONG),
    Cell("io workers", "hangs", _suspends("io worker", 64), lasts=LONG),
    Cell("database", "dies", _crash, DOWN, mixed=True, short=True),
    Cell("database (restart)", "dies", _restart, OUTAGE, lasts=0.0, mixed=True),
    Cell("database", "hangs", lambda stage: stage.server.frozen(), DOWN, lasts=LONG, mixed=True, short=True),
    Cell("table stacks", "hangs", partial(_lock, table="stacks"), _FAILED, lasts=LONG),
    # Only `/ready` reads it.
    Cell("table schema_migrations", "hangs", partial(_lock, table="schema_migrations"), _UNREADY, lasts=LONG),
    Cell("primary", "dies", partial(_primary_dies, synchronous=True), DOWN, mixed=True),
    Cell("primary (lagging standby, control)", "dies", partial(_primary_dies, synchronous=False), DOWN,
         control="R3", short=True),
    Cell(_NETWORK, "hangs", _hold, DOWN, lasts=LONG, mixed=True),
    Cell(_NETWORK, "dies", lambda stage: stage.proxy.cut(), OUTAGE, lasts=0.0, mixed=True),
    Cell(_NETWORK, "is slow", _delay, _SLOW, lasts=LONG),
    Cell(f"{_NETWORK} (responses lost)", "lies", partial(_hold, only_backwards=True), DOWN,
         lasts=LONG, short=True),
]  # fmt: skip
