"""Cells of what stands before the database and before the service: PgBouncer, and nginx."""

import http.client
import signal
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import psutil
import psycopg

from tests.matrix.cell import CLIENTS, Bound, Cell, Fault, How
from tests.matrix.stage import NoPlace, Setup, Stage
from tests.support.nginx import NGINX, nginx_before
from tests.support.pgbouncer import PROGRAM, make_pooled_login, pgbouncer, socket_path
from tests.support.server import free_port
from tests.support.workload import kept_transport

_LOGIN = "stackmgr_service"
_POOL_SIZE = 4
_CLIENT_TIMEOUT = 45.0
# The settings of pooler.sql suit the service's default only.
_DATABASE_TIMEOUT = 5.0


def _children(name: str) -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if child.name() == name]


def _end(name: str) -> None:
    for process in _children(name):
        process.kill()
        process.wait()


@contextmanager
def _with_pgbouncer(setup: Setup) -> Iterator[None]:
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
    with nginx_before(folder, setup.port, has_workers=True) as proxy, ExitStack() as connections:
        context = ssl.create_default_context(cafile=folder / "tls/fullchain.pem")

        def connect() -> http.client.HTTPSConnection:
            connection = http.client.HTTPSConnection(
                "localhost", proxy.port, timeout=_CLIENT_TIMEOUT, context=context
            )
            connections.callback(connection.close)
            return connection

        setup.transport = kept_transport(connect)
        yield


def _hangs(name: str) -> Fault:
    @contextmanager
    def fault(stage: Stage) -> Iterator[None]:
        [process] = _children(name)
        process.suspend()
        try:
            yield
        finally:
            process.resume()

    return fault


def _dies(name: str) -> Fault:
    """Return the fault in which the process is killed, and started again as it was."""

    @contextmanager
    def fault(stage: Stage) -> Iterator[None]:
        [process] = _children(name)
        command, folder = process.cmdline(), process.cwd()
        user, group = process.uids().real, process.gids().real
        process.kill()
        process.wait()
        try:
            yield
        finally:
            subprocess.Popen(
                command,
                cwd=folder,
                user=user,
                group=group,
                extra_groups=[],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )

    return fault


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


def _reloads(name: str) -> Fault:
    @contextmanager
    def fault(stage: Stage) -> Iterator[None]:
        [process] = _children(name)
        process.send_signal(signal.SIGHUP)
        yield

    return fault


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


_SLOWEST = _DATABASE_TIMEOUT + 0.5
_OUTAGE = Bound("500 503", ready="may fail", slowest=_SLOWEST)


def _pgbouncer_cell(how: How, fault: Fault, bound: Bound = _OUTAGE, lasts: float = 3.0) -> Cell:
    return Cell("PgBouncer", how, fault, bound, setup=_with_pgbouncer, lasts=lasts)


CELLS = [
    _pgbouncer_cell("dies", _dies(PROGRAM.name)),
    _pgbouncer_cell("hangs", _hangs(PROGRAM.name)),
    _pgbouncer_cell("is full", _transactions_are_left_open),
    Cell("PgBouncer (reload)", "is slow", _reloads(PROGRAM.name), setup=_with_pgbouncer),
    Cell("nginx", "dies", _workers_of_nginx_die, Bound("cut", most=CLIENTS), setup=_with_nginx),
    Cell("nginx", "hangs", _workers_of_nginx_hang, Bound(slowest=4.0), setup=_with_nginx, lasts=3.0),
    # It closes each idle connection, which its client may be about to use.
    Cell("nginx (reload)", "is slow", _reloads("nginx"), Bound("cut", most=CLIENTS), setup=_with_nginx),
]

EMPTY = {
    "PgBouncer: lies": "it could give another session's settings, which a new connection verifies",
    "nginx: lies": "the service believes nothing of it but the request itself",
}
