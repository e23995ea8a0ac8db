"""Cells of a remote verifier that hangs, ends, is full, slow or wrong."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tests.faults.cell import Bound, Cell, Fault
from tests.faults.stage import Setup, Stage
from tests.support.http_server import Behaviour, drip, http_server, response
from tests.support.unkey_server import ROOT_KEY, accepted, accepting

_VERIFY_TIMEOUT = 1.0
_BACKLOG = 8


@contextmanager
def with_unkey(setup: Setup) -> Iterator[None]:
    """Let an Unkey that accepts the keys of the managers verify them."""
    external_ids = {manager.api_key: manager.external_id for manager in setup.managers}
    with http_server(accepting(external_ids)) as server:
        setup.unkey = server
        setup.environment |= {
            "STACKMGR_VERIFIER": "unkey",
            "STACKMGR_UNKEY_URL": server.url,
            "STACKMGR_UNKEY_ROOT_KEY": ROOT_KEY,
            "STACKMGR_VERIFY_TIMEOUT": str(_VERIFY_TIMEOUT),
        }
        yield


def _behaves(behaviour: Behaviour | None = None) -> Fault:
    """Return the fault that Unkey behaves so, or is silent.  What has been left hanging stays so."""

    @contextmanager
    def fault(stage: Stage) -> Iterator[None]:
        assert stage.unkey is not None
        before = stage.unkey.behave
        stage.unkey.behave = behaviour or stage.unkey.silence
        try:
            yield
        finally:
            stage.unkey.behave = before

    return fault


hang = _behaves()


@contextmanager
def _accept_nothing(stage: Stage) -> Iterator[None]:
    """Let the kernel drop connections, because those before them are not accepted."""
    assert stage.unkey is not None
    address = ("127.0.0.1", stage.unkey.port)
    with stage.unkey.not_listening(), ExitStack() as held, socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(0)
        for _ in range(_BACKLOG):
            waiting = held.enter_context(socket.socket())
            waiting.settimeout(0)
            waiting.connect_ex(address)
        yield


_REJECTED = Bound("503")
_DRIP = _behaves(drip(response(200, accepted("b4a2ea4e-16b5-4b3f-a1cb-8c5bc2e81f93")), 0.02))

CELLS = [
    Cell("verifier", "hangs", hang, _REJECTED, setup=with_unkey, lasts=3.0, short=True),
    # Nothing else leaves a verification waiting for a connection.
    Cell("verifier", "is full", _accept_nothing, _REJECTED, setup=with_unkey, lasts=3.0),
    Cell("verifier (byte by byte)", "is slow", _DRIP, _REJECTED, setup=with_unkey, lasts=3.0),
]
