"""A verifier that hangs, resets its connections, and recovers."""

import json
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from tests.drills.stage import Stage

_VERIFY_TIMEOUT = 1.0
_HANG_SECONDS = 1.5
_RESET_SECONDS = 0.5


@contextmanager
def unkey_for(managers: Sequence[Manager]) -> Iterator[UnkeyServer]:
    """Run an Unkey that accepts the keys of *managers*."""
    with unkey_server() as server:
        server.behave = _accepting(managers)
        yield server


def environment(unkey: UnkeyServer) -> dict[str, str]:
    """Return the settings of a service that calls *unkey*."""
    return {
        "STACKMGR_VERIFIER": "unkey",
        "STACKMGR_UNKEY_URL": unkey.url,
        "STACKMGR_UNKEY_ROOT_KEY": ROOT_KEY,
        "STACKMGR_VERIFY_TIMEOUT": str(_VERIFY_TIMEOUT),
    }


def hang_reset_and_recover(stage: "Stage") -> None:
    """Inflict the fault.  What has been left hanging stays so."""
    assert stage.unkey is not None
    accepting = stage.unkey.behave
    stage.unkey.behave = stage.unkey.silence
    time.sleep(_HANG_SECONDS)
    stage.unkey.behave = reset
    time.sleep(_RESET_SECONDS)
    stage.unkey.behave = accepting


def _accepting(managers: Sequence[Manager]) -> Behaviour:
    accounts = {manager.api_key: manager.external_id for manager in managers}

    def behave(client: socket.socket, request: Request) -> bool:
        external_id = accounts[json.loads(request.body)["key"]]
        client.sendall(response(200, accepted(external_id, f"id_{external_id}")))
        return True

    return behave
