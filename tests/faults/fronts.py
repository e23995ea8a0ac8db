"""Cells of what stands before the database and beside or before the service: PgBouncer, nginx, a verifier."""

import signal
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil

from tests.faults.cell import ONE_WORKER, OUTAGE, Bound, Cell
from tests.faults.stage import NoPlace, Stage
from tests.support.http_server import http_server
from tests.support.nginx import NGINX, nginx_before
from tests.support.pgbouncer import PROGRAM, make_pooled_login, pgbouncer, socket_path
from tests.support.server import free_port
from tests.support.unkey_server import accepting, settings_for

_LOGIN = "stackmgr_service"
_POOL_SIZE = 4
# The settings of pooler.sql suit the service's default only.
_DATABASE_TIMEOUT = 5.0
_VERIFY_TIMEOUT = 1.0


def _child(name: str) -> psutil.Process:
    [process] = [child for child in psutil.Process().children() if child.name() == name]
    return process


def _kill(process: psutil.Process) -> None:
    process.kill()
    process.wait()


@contextmanager
def with_pgbouncer(stage: Stage) -> Iterator[None]:
    if not PROGRAM.exists():
        raise NoPlace("PgBouncer is not installed")
    server_url = stage.server.url()
    make_pooled_login(server_url)
    with pgbouncer(PROGRAM, server_url, default_pool_size=str(_POOL_SIZE)) as url:
        stage.login, stage.socket_path = _LOGIN, socket_path(url)
        stage.environment["STACKMGR_DATABASE_TIMEOUT"] = f"{_DATABASE_TIMEOUT:.0f}"
        try:
            yield
        finally:
            _kill(_child(PROGRAM.name))


@contextmanager
def _with_nginx(stage: Stage) -> Iterator[None]:
    if NGINX is None:
        raise NoPlace("nginx is not installed")
    stage.port = free_port()
    folder = stage.folder / "nginx"
    folder.mkdir()
    with nginx_before(folder, stage.port, has_workers=True) as proxy:
        stage.client_port = proxy.port
        stage.tls = ssl.create_default_context(cafile=folder / "tls/fullchain.pem")
        yield


@contextmanager
def _pgbouncer_dies(_: Stage) -> Iterator[None]:
    process = _child(PROGRAM.name)
    command, folder = process.cmdline(), process.cwd()
    run_as: dict[str, Any] = {"user": process.uids().real, "group": process.gids().real, "extra_groups": []}
    _kill(process)
    try:
        yield
    finally:
        nowhere = subprocess.DEVNULL
        subprocess.Popen(command, cwd=folder, stdout=nowhere, stderr=nowhere, **run_as)


@contextmanager
def with_unkey(stage: Stage) -> Iterator[None]:
    external_ids = {manager.api_key: manager.external_id for manager in stage.managers}
    with http_server(accepting(external_ids)) as stage.unkey:
        stage.environment |= settings_for(stage.unkey.url, VERIFY_TIMEOUT=str(_VERIFY_TIMEOUT))
        yield


@contextmanager
def _hang(stage: Stage) -> Iterator[None]:
    """Let Unkey be silent.  What has been left hanging stays so."""
    before, stage.unkey.behave = stage.unkey.behave, stage.unkey.silence
    try:
        yield
    finally:
        stage.unkey.behave = before


HANG = Cell("verifier", "hangs", _hang, Bound("503"), setup=with_unkey, lasts=3.0, short=True)
CELLS = [
    Cell("PgBouncer", "dies", _pgbouncer_dies, OUTAGE, setup=with_pgbouncer, lasts=3.0),
    # It closes each idle connection, which its client may be about to use.
    Cell("nginx (reload)", "is slow", lambda _: _child("nginx").send_signal(signal.SIGHUP), ONE_WORKER,
         setup=_with_nginx),
    HANG,
]  # fmt: skip
