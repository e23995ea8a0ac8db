"""Cells of a remote verifier that hangs, or whose connections are used up."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tests.faults.cell import Bound, Cell
from tests.faults.stage import Stage
from tests.support.http_server import http_server
from tests.support.unkey_server import ROOT_KEY, accepting

_VERIFY_TIMEOUT = 1.0
_BACKLOG = 8


@contextmanager
def with_unkey(stage: Stage) -> Iterator[None]:
    """Let an Unkey that accepts the keys of the managers verify them."""
    external_ids = {manager.api_key: manager.external_id for manager in stage.managers}
    with http_server(accepting(external_ids)) as stage.unkey:
        stage.environment |= {
            "STACKMGR_VERIFIER": "unkey",
            "STACKMGR_UNKEY_URL": stage.unkey.url,
            "STACKMGR_UNKEY_ROOT_KEY": ROOT_KEY,
            "STACKMGR_VERIFY_TIMEOUT": str(_VERIFY_TIMEOUT),
        }
        yield


@contextmanager
def _hang(stage: Stage) -> Iterator[None]:
    """Let Unkey be silent.  What has been left hanging stays so."""
    before, stage.unkey.behave = stage.unkey.behave, stage.unkey.silence
    try:
        yield
    finally:
        stage.unkey.behave = before


@contextmanager
def _accept_nothing(stage: Stage) -> Iterator[None]:
    """Let the kernel drop connections, because those before them are not accepted."""
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
HANG = Cell("verifier", "hangs", _hang, _REJECTED, setup=with_unkey, lasts=3.0, short=True)

CELLS = [
    HANG,
    # Nothing else leaves a verification waiting for a connection.
    Cell("verifier", "is full", _accept_nothing, _REJECTED, setup=with_unkey, lasts=3.0),
]
