"""Cells of a remote verifier that ends, is slow, is full, or returns what no verifier should."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tests.matrix.cell import Bound, Cell, Fault, How
from tests.matrix.stage import Stage
from tests.matrix.verifier import behaving, with_unkey
from tests.support.unkey_server import (
    Behaviour,
    Request,
    accepted,
    drip,
    hang_up,
    raw,
    respond,
    response,
    verification,
)

_BACKLOG = 8
_LASTS = 2.0


@contextmanager
def _ends(stage: Stage) -> Iterator[None]:
    """Let nothing listen on the verifier's port."""
    assert stage.unkey is not None
    with stage.unkey.not_listening():
        yield


@contextmanager
def _accepts_nothing(stage: Stage) -> Iterator[None]:
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


def _delayed(seconds: float) -> Fault:
    """Return the fault in which each response is correct and comes after so many seconds."""

    @contextmanager
    def fault(stage: Stage) -> Iterator[None]:
        assert stage.unkey is not None
        prompt = stage.unkey.behave

        def behave(client: socket.socket, request: Request) -> bool | None:
            time.sleep(seconds)
            return prompt(client, request)

        stage.unkey.behave = behave
        try:
            yield
        finally:
            stage.unkey.behave = prompt

    return fault


@contextmanager
def _swaps_identities(stage: Stage) -> Iterator[None]:
    """Return each manager's external id with the identity of another manager."""
    assert stage.unkey is not None
    honest = stage.unkey.behave
    accounts = {manager.api_key: manager.external_id for manager in stage.managers}

    def behave(client: socket.socket, request: Request) -> bool:
        own = accounts[json.loads(request.body)["key"]]
        other = next(external_id for external_id in accounts.values() if external_id != own)
        client.sendall(response(200, accepted(own, f"id_{other}")))
        return True

    stage.unkey.behave = behave
    try:
        yield
    finally:
        stage.unkey.behave = honest


def _says(behaviour: Behaviour) -> Fault:
    return behaving(lambda _: behaviour)


_SOMEBODY = accepted("b4a2ea4e-16b5-4b3f-a1cb-8c5bc2e81f93")
_LIES: dict[str, tuple[Behaviour, str]] = {
    "garbage": (raw(b"\x00\xff garbage \r\n\r\n"), "503"),
    "endless head": (raw(b"HTTP/1.1 200 OK\r\n" + b"X-Fill: y\r\n" * 100_000), "503"),
    "huge body": (respond(200, b"x" * (8 << 20)), "503"),
    "truncated body": (raw(response(200, _SOMEBODY)[:-20]), "503"),
    "HTML": (respond(200, b"<!DOCTYPE html><title>Maintenance</title>", "Content-Type: text/html"), "503"),
    "JSON array": (respond(200, b"[1]"), "503"),
    "contradiction": (respond(200, verification("VALID", valid=False)), "503"),
    "redirect": (respond(302, b"", "Location: http://127.0.0.1:1/"), "503"),
    "status 500": (respond(500, {}), "503"),
    "status 401": (respond(401, {}), "503"),
    "status 429": (respond(429, {}, "Retry-After: 1"), "429"),
    "no identity": (respond(200, verification("VALID", valid=True)), "401"),
    "malformed external id": (respond(200, accepted("nobody")), "401"),
    "rejects every key": (respond(200, verification("NOT_FOUND")), "401"),
}


def _cell(what: str, how: How, fault: Fault, kinds: str = "503", lasts: float = _LASTS) -> Cell:
    return Cell(what, how, fault, Bound(kinds), setup=with_unkey, lasts=lasts)


CELLS = [
    _cell("verifier (not listening)", "dies", _ends),
    _cell("verifier (closes connections)", "dies", _says(hang_up)),
    _cell("verifier", "is full", _accepts_nothing, lasts=3.0),
    _cell("verifier (within the time-out)", "is slow", _delayed(0.5), ""),
    _cell("verifier (beyond the time-out)", "is slow", _delayed(1.2), lasts=3.0),
    _cell("verifier (byte by byte)", "is slow", _says(drip(response(200, _SOMEBODY), 0.02)), lasts=3.0),
    _cell("verifier (another identity)", "lies", _swaps_identities, "500"),
    *(
        _cell(f"verifier ({what})", "lies", _says(behaviour), kinds)
        for what, (behaviour, kinds) in _LIES.items()
    ),
]

EMPTY = {
    "certificate of the verifier: lies": "then there is no connection, as to one that does not listen",
    "verifier (accepts every key): lies": "the service has nothing else to believe",
}
