"""Cells of the way to the database: a slow or broken network, and a name server that fails."""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from tests.matrix.cell import Bound, Cell, Fault, How
from tests.matrix.name_server import NameServer, with_resolver
from tests.matrix.network import DistantPostgres, Network, distant_server
from tests.matrix.server_objects import end_connections
from tests.matrix.server_processes import LONG, OUTAGE
from tests.matrix.stage import Setup, Stage
from tests.matrix.verifier import with_unkey
from tests.support.repeating import repeated
from tests.support.waiting import eventually

_DELAY_SECONDS = 0.1
_RESET_INTERVAL = 0.1
_LOSING_SECONDS, _CARRYING_SECONDS = 0.1, 0.2
_NOWHERE = "/nonexistent"
# A loopback address on which nothing listens.
_DEAD_ADDRESS = "127.99.0.1"
# Longer than the 5 s after which glibc, by default, repeats a query.
_SILENT_SECONDS = 5.3
# In which a client of the verifier notices that a connection is closed.
_RECONNECT_SECONDS = 0.3
_RIGHT = "127.0.0.1"
_DATABASE_NAME, _VERIFIER_NAME = "database.matrix.test", "verifier.matrix.test"
_NAMES = NameServer()


@contextmanager
def _slow(stage: Stage) -> Iterator[None]:
    stage.proxy.delay = _DELAY_SECONDS
    try:
        yield
    finally:
        stage.proxy.delay = 0.0


@contextmanager
def _loses_responses(stage: Stage) -> Iterator[None]:
    """Let requests reach the database, and no response come back."""
    stage.proxy.hold(only_backwards=True)
    try:
        yield
    finally:
        stage.proxy.release()


def _resets(stage: Stage) -> AbstractContextManager[None]:
    """Reset every connection ten times a second."""
    return repeated(stage.proxy.cut, _RESET_INTERVAL)


@contextmanager
def _accepts_and_closes(stage: Stage) -> Iterator[None]:
    """Do what a load balancer without a server does: accept a connection and close it."""
    target, stage.proxy.target = stage.proxy.target, _NOWHERE
    stage.proxy.cut()
    try:
        yield
    finally:
        stage.proxy.target = target


@contextmanager
def _accepts_and_is_silent(stage: Stage) -> Iterator[None]:
    """End the connections, and let the new ones never get a byte."""
    stage.proxy.hold()
    stage.proxy.cut()
    try:
        yield
    finally:
        stage.proxy.release()


def _network(stage: Stage) -> Network:
    assert isinstance(stage.server, DistantPostgres)
    return stage.server.network


def _loses_some_packets(stage: Stage) -> AbstractContextManager[None]:
    """Lose all packets for a moment, again and again."""

    def lose() -> None:
        _network(stage).lose()
        time.sleep(_LOSING_SECONDS)
        _network(stage).carry()

    return repeated(lose, _CARRYING_SECONDS)


@contextmanager
def _host_restarts(stage: Stage) -> Iterator[None]:
    """Restart the database while no packet comes through: its clients learn of it when they send again."""
    _network(stage).lose()
    try:
        stage.server.crash()
        stage.server.start()
        yield
    finally:
        _network(stage).carry()
    eventually(stage.server.accepts)


@contextmanager
def _with_names(setup: Setup) -> Iterator[None]:
    """Let the service know its database by a name."""
    with _NAMES:
        setup.wrapper = with_resolver(setup.folder, _NAMES.address)
        setup.host = _DATABASE_NAME
        yield


@contextmanager
def _with_a_name_of_the_verifier(setup: Setup) -> Iterator[None]:
    """Let the service know its verifier by a name."""
    with _NAMES, with_unkey(setup):
        setup.wrapper = with_resolver(setup.folder, _NAMES.address)
        assert setup.unkey is not None
        setup.environment["STACKMGR_UNKEY_URL"] = f"http://{_VERIFIER_NAME}:{setup.unkey.port}"
        yield


def _names(*addresses: str, delay: float = 0.0, silent: bool = False) -> Fault:
    """Return the fault in which the name server responds so, while new connections are needed."""

    @contextmanager
    def fault(stage: Stage) -> Iterator[None]:
        _NAMES.addresses, _NAMES.delay, _NAMES.silent = addresses, delay, silent
        try:
            end_connections(stage)
            if stage.unkey is not None:
                with stage.unkey.not_listening():
                    time.sleep(_RECONNECT_SECONDS)
            yield
        finally:
            _NAMES.reset()

    return fault


def _name_cell(what: str, how: How, fault: Fault, bound: Bound = OUTAGE, lasts: float = LONG) -> Cell:
    return Cell(what, how, fault, bound, setup=_with_names, lasts=lasts)


_DOWN = Bound("500 503", ready="fails")
_NETWORK = "network to the database"

CELLS = [
    # A new connection needs several round trips, which the first requests do not wait for.
    Cell(_NETWORK, "is slow", _slow, Bound("503", ready="may fail"), lasts=LONG),
    Cell(f"{_NETWORK} (responses lost)", "lies", _loses_responses, _DOWN, lasts=LONG, short=True),
    Cell(f"{_NETWORK} (resets)", "lies", _resets, OUTAGE, lasts=LONG),
    Cell(f"{_NETWORK} (accepts and closes)", "lies", _accepts_and_closes, _DOWN, lasts=LONG),
    Cell(f"{_NETWORK} (accepts, is silent)", "lies", _accepts_and_is_silent, _DOWN, lasts=LONG),
    Cell("packets to the database", "is slow", _loses_some_packets, OUTAGE, setup=distant_server, lasts=LONG),
    Cell("host of the database", "dies", _host_restarts, _DOWN, setup=distant_server, lasts=LONG),
    _name_cell("name of the database", "dies", _names(), _DOWN),
    _name_cell("name of the database (dead address)", "lies", _names(_DEAD_ADDRESS), _DOWN),
    _name_cell("name of the database (one dead address of two)", "lies", _names(_DEAD_ADDRESS, _RIGHT)),
    _name_cell("name server", "is slow", _names(_RIGHT, delay=0.5)),
    _name_cell("name server", "hangs", _names(silent=True), _DOWN, lasts=_SILENT_SECONDS),
    Cell(
        *("name server (of the verifier)", "hangs", _names(silent=True), Bound("500 503", ready="may fail")),
        setup=_with_a_name_of_the_verifier,
        lasts=_SILENT_SECONDS,
    ),
]

EMPTY = {
    "name of the database (silent address): lies": "as a network that accepts and is silent",
    "name server: lies": "see the name of the database",
}
