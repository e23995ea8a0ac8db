"""Cells of a primary that dies for good, and of its standby, which takes over."""

import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg

from tests.faults.cell import DOWN, Cell
from tests.faults.database import execute
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


@contextmanager
def _primary_dies(stage: Stage, *, synchronous: bool) -> Iterator[None]:
    """Let the primary die for good, with or without a *synchronous* standby, which is then promoted."""
    with Proxy(stage.server.socket_path) as link, ExitStack() as undo:
        folder = undo.enter_context(tempfile.TemporaryDirectory(prefix="stackmgr-standby-"))
        standby = FaultyPostgres(Path(folder) / "data")
        standby.follow(f"host=127.0.0.1 port={link.port} user=postgres application_name={_NAME}")
        undo.enter_context(standby)
        with psycopg.connect(stage.server.url(), autocommit=True) as primary:

            def one(query: bytes) -> Any:
                row: Any = primary.execute(query).fetchone()
                return row and row[0]

            if synchronous:
                names = f"ALTER SYSTEM SET synchronous_standby_names = '{_NAME}'"
                execute(stage, names, "SELECT pg_reload_conf()")
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


CELLS = [
    Cell("primary", "dies", partial(_primary_dies, synchronous=True), DOWN, mixed=True),
    Cell(
        *("primary (lagging standby, control)", "dies", partial(_primary_dies, synchronous=False), DOWN),
        control="R3",
        short=True,
    ),
]
