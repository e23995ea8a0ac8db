"""Cells of a primary that dies for good, and of its standby, which takes over."""

import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg

from tests.faults.cell import DOWN, Cell, Fault
from tests.faults.stage import Stage
from tests.support.postgres import FaultyPostgres
from tests.support.tcp_proxy import Proxy
from tests.support.waiting import eventually

_NAME = "standby"
_STREAMING = b"SELECT sync_state FROM pg_catalog.pg_stat_replication WHERE state = 'streaming'"
_REVISIONS = b"SELECT count(*) FROM stackmgr.stack_revisions"
# How many revisions a standby that lags is to lack at least.
_BEHIND = 20
# How long clients go on before the primary dies, and a lagging standby falls behind, in seconds.
_MEANWHILE = 0.5


def _to_a_standby(*, synchronous: bool) -> Fault:
    """Return the fault that the primary dies for good, with or without a *synchronous* standby."""

    @contextmanager
    def fault(stage: Stage) -> Iterator[None]:
        with Proxy(stage.server.socket_path) as link, ExitStack() as undo:
            folder = undo.enter_context(tempfile.TemporaryDirectory(prefix="stackmgr-standby-"))
            standby = FaultyPostgres(Path(folder) / "data")
            standby.follow(f"host=127.0.0.1 port={link.port} user=postgres application_name={_NAME}")
            undo.enter_context(standby)
            _await_standby(stage.server, synchronous=synchronous)
            if not synchronous:
                link.hold()
                _await_revisions(stage.server)
            time.sleep(_MEANWHILE)
            stage.server.crash()
            yield
            with psycopg.connect(standby.url(), autocommit=True) as connection:
                connection.execute(b"SELECT pg_promote()")
            stage.replace_server(standby, undo.pop_all())

    return fault


def _await_standby(primary: FaultyPostgres, *, synchronous: bool) -> None:
    with psycopg.connect(primary.url(), autocommit=True) as connection:
        if synchronous:
            connection.execute(b"ALTER SYSTEM SET synchronous_standby_names = 'standby'")
            connection.execute(b"SELECT pg_reload_conf()")
        wanted = ("sync" if synchronous else "async",)
        eventually(lambda: connection.execute(_STREAMING).fetchone() == wanted)


def _await_revisions(primary: FaultyPostgres) -> None:
    with psycopg.connect(primary.url(), autocommit=True) as connection:

        def made() -> int:
            row: Any = connection.execute(_REVISIONS).fetchone()
            return int(row[0])

        before = made()
        eventually(lambda: made() >= before + _BEHIND, 60)


CELLS = [
    Cell("primary", "dies", _to_a_standby(synchronous=True), DOWN, mixed=True),
    Cell(
        *("primary (lagging standby, control)", "dies", _to_a_standby(synchronous=False), DOWN),
        control="R3",
        short=True,
    ),
]
