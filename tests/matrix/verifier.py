"""A verifier that hangs, resets its connections, and recovers."""

import json
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from tests.matrix.cell import Bound, Cell, Fault
from tests.matrix.stage import Setup, Stage
from tests.support.unkey_server import (
    ROOT_KEY,
    Behaviour,
    Request,
    UnkeyServer,
    accepted,
    reset,
    response,
    unkey_server,
)
from tests.support.workload import Manager

_VERIFY_TIMEOUT = 1.0


@contextmanager
def with_unkey(setup: Setup) -> Iterator[None]:
    """Let an Unkey that accepts the keys of the managers verify them."""
    with unkey_server() as server:
        server.behave = _accepting(setup.managers)
        setup.unkey = server
        setup.environment |= {
            "STACKMGR_VERIFIER": "unkey",
            "STACKMGR_UNKEY_URL": server.url,
            "STACKMGR_UNKEY_ROOT_KEY": ROOT_KEY,
            "STACKMGR_VERIFY_TIMEOUT": str(_VERIFY_TIMEOUT),
        }
        yield


def behaving(choose: Callable[[UnkeyServer], Behaviour]) -> Fault:
    """Return the fault that Unkey behaves as *choose* says.  What has been left hanging stays so."""

    @contextmanager
    def fault(stage: Stage) -> Iterator[None]:
        assert stage.unkey is not None
        accepting = stage.unkey.behave
        stage.unkey.behave = choose(stage.unkey)
        try:
            yield
        finally:
            stage.unkey.behave = accepting

    return fault


def _accepting(managers: Sequence[Manager]) -> Behaviour:
    accounts = {manager.api_key: manager.external_id for manager in managers}

    def behave(client: socket.socket, request: Request) -> bool:
        external_id = accounts[json.loads(request.body)["key"]]
        client.sendall(response(200, accepted(external_id, f"id_{external_id}")))
        return True

    return behave


_OUTAGE = Bound("503")

CELLS = [
    Cell(
        *("verifier", "hangs", behaving(lambda unkey: unkey.silence), _OUTAGE),
        setup=with_unkey,
        lasts=3.0,
        short=True,
    ),
    Cell("verifier", "dies", behaving(lambda _: reset), _OUTAGE, setup=with_unkey),
]
