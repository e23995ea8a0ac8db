"""Unkey: its responses, as a behaviour of an `http_server`, or as a process."""

import json
import os
import socket
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from stackmgr.access import api_keys
from tests.support.http_server import Behaviour, Request, http_server, response
from tests.support.processes import serving_module

ROOT_KEY = "unkey_rootkeyrootkeyrootkey"
_HANGS = 3600.0


def settings_for(url: str, **others: str) -> dict[str, str]:
    """Return the environment of a service whose keys Unkey verifies; *others* are settings too."""
    given = {"VERIFIER": "unkey", "UNKEY_URL": url, "UNKEY_ROOT_KEY": ROOT_KEY, **others}
    return {f"STACKMGR_{name}": value for name, value in given.items()}


def verification(code: str, *, valid: bool = False, **data: Any) -> dict[str, Any]:
    return {"meta": {"requestId": "req_1"}, "data": {"valid": valid, "code": code} | data}


def accepted(external_id: Any, identity_id: Any = "id_1") -> dict[str, Any]:
    return verification("VALID", valid=True, identity={"id": identity_id, "externalId": external_id})


def accepting(external_ids: Mapping[str, str], delay: float = 0.0) -> Behaviour:
    def behave(client: socket.socket, request: Request) -> bool:
        external_id = external_ids.get(json.loads(request.body)["key"])
        time.sleep(min(delay, _HANGS))
        identity = api_keys.identity_of(external_id) if external_id else ""
        body = accepted(external_id, identity) if external_id else verification("NOT_FOUND")
        client.sendall(response(200, body))
        return True

    return behave


@contextmanager
def unkey_process(external_ids: Mapping[str, str], delay: float) -> Iterator[tuple[dict[str, str], int]]:
    with serving_module(__name__, delay, given=json.dumps(external_ids)) as (port, pid):
        yield settings_for(f"http://127.0.0.1:{port}"), pid


def _main() -> None:
    with http_server() as server:
        server.behave = accepting(json.loads(sys.stdin.readline()), float(sys.argv[1]))
        server.requests, server.read_deadline = deque(maxlen=0), None
        print(server.port, flush=True)
        sys.stdin.read()
    os._exit(0)  # whatever is still waiting


if __name__ == "__main__":
    _main()
