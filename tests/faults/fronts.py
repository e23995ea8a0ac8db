"""Cells of what stands before the database and before the service: PgBouncer, and nginx."""

import signal
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import psutil
import psycopg

from tests.faults.cell import ONE_WORKER, Bound, Cell
from tests.faults.stage import NoPlace, Setup, Stage
from tests.support.nginx import NGINX, nginx_before
from tests.support.pgbouncer import PROGRAM, make_pooled_login, pgbouncer, socket_path
from tests.support.server import free_port

_LOGIN = "stackmgr_service"
_POOL_SIZE = 4
# The settings of pooler.sql suit the service's default only.
_DATABASE_TIMEOUT = 5.0


def _children(name: str) -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if child.name() == name]


def _end(name: str) -> None:
    for process in _children(name):
        process.kill()
        process.wait()


@contextmanager
def with_pgbouncer(setup: Setup) -> Iterator[None]:
    if not PROGRAM.exists():
        raise NoPlace("PgBouncer is not installed")
    server_url = setup.server.url()
    make_pooled_login(server_url)
    with pgbouncer(PROGRAM, server_url, default_pool_size=str(_POOL_SIZE)) as url:
        setup.login, setup.socket_path = _LOGIN, socket_path(url)
        setup.environment["STACKMGR_DATABASE_TIMEOUT"] = f"{_DATABASE_TIMEOUT:.0f}"
        try:
            yield
        finally:
            _end(PROGRAM.name)


@contextmanager
def _with_nginx(setup: Setup) -> Iterator[None]:
    if NGINX is None:
        raise NoPlace("nginx is not installed")
    setup.port = free_port()
    folder = setup.folder / "nginx"
    folder.mkdir()
    with nginx_before(folder, setup.port, has_workers=True) as proxy:
        setup.client_port = proxy.port
        setup.tls = ssl.create_default_context(cafile=folder / "tls/fullchain.pem")
        yield


@contextmanager
def _pgbouncer_dies(_: Stage) -> Iterator[None]:
    """Kill PgBouncer, and start it again as it was."""
    [process] = _children(PROGRAM.name)
    command, folder = process.cmdline(), process.cwd()
    user, group = process.uids().real, process.gids().real
    process.kill()
    process.wait()
    try:
        yield
    finally:
        quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.Popen(command, cwd=folder, user=user, group=group, extra_groups=[], **quiet)


@contextmanager
def _workers_of_nginx_die(stage: Stage) -> Iterator[None]:
    [master] = _children("nginx")
    for worker in master.children():
        worker.kill()
    yield


@contextmanager
def _workers_of_nginx_hang(stage: Stage) -> Iterator[None]:
    [master] = _children("nginx")
    workers = master.children()
    for worker in workers:
        worker.suspend()
    try:
        yield
    finally:
        for worker in workers:
            worker.resume()


@contextmanager
def _reload_nginx(_: Stage) -> Iterator[None]:
    [process] = _children("nginx")
    process.send_signal(signal.SIGHUP)
    yield


@contextmanager
def _transactions_are_left_open(stage: Stage) -> Iterator[None]:
    """Let another client of PgBouncer keep every server connection."""
    folder = stage.setup.socket_path.rpartition("/")[0]
    port = stage.setup.socket_path.rpartition(".")[2]
    with ExitStack() as held:
        for _ in range(_POOL_SIZE):
            connection = held.enter_context(
                psycopg.connect(f"host={folder} port={port} user={_LOGIN} dbname=stackmgr")
            )
            connection.execute(b"SELECT 1")
        yield


_WAITS = Bound("500 503", ready="may fail", slowest=_DATABASE_TIMEOUT + 0.5)
_FULL = _transactions_are_left_open

CELLS = [
    Cell("PgBouncer", "dies", _pgbouncer_dies, _WAITS, setup=with_pgbouncer, lasts=3.0),
    Cell("PgBouncer", "is full", _FULL, _WAITS, setup=with_pgbouncer, lasts=3.0),
    Cell("nginx", "dies", _workers_of_nginx_die, ONE_WORKER, setup=_with_nginx),
    Cell("nginx", "hangs", _workers_of_nginx_hang, Bound(slowest=4.0), setup=_with_nginx, lasts=3.0),
    # It closes each idle connection, which its client may be about to use.
    Cell("nginx (reload)", "is slow", _reload_nginx, ONE_WORKER, setup=_with_nginx),
]
