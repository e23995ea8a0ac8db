"""Canaries: no response and no log holds a key, root key, Authorization, Idempotency-Key or unknown path."""

import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from stackmgr.access import api_keys
from tests.support.examples import configuration
from tests.support.http_server import Request, hang_up, http_server, raw, reset, respond
from tests.support.server import RunningService, exchange, running_service
from tests.support.unkey_server import accepted

CANARY = f"canary{uuid4().hex}"


def everything(request: Request) -> bytes:
    """Return all that a request has brought, as a careless server would put it into a page."""
    return b"\r\n".join([request.line.encode(), repr(request.headers).encode(), request.body])


def echoing_redirect(client, request):
    key = json.loads(request.body)["key"]
    return respond(302, everything(request), f"Location: /{key}", f"X-Echo: {key}")(client, request)


def echoing_broken_headers(client, request):
    lines = [f"Authorization {request.headers['authorization']}", request.body.decode(), "", ""]
    return raw(b"HTTP/1.1 200 OK\r\nX: y\r\n" + "\r\n".join(lines).encode())(client, request)


MISBEHAVIOURS = (
    lambda client, request: respond(403, everything(request))(client, request),
    lambda client, request: raw(everything(request) + b"\r\n\r\n")(client, request),
    echoing_redirect, echoing_broken_headers, hang_up, reset,
)  # fmt: skip


def send(service: RunningService, headers: dict[str, str], *request: Any) -> bytes:
    path, *rest = request or ("/manager/stacks",)
    received = exchange(service.port, path, headers, *rest)
    return repr(received.headers.items()).encode() + received.body


def requests_of_every_kind(service: RunningService, key: str):
    """Yield the responses to requests, good and bad, that carry canaries wherever they may."""
    auth = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    idempotent = auth | {"Idempotency-Key": f"{CANARY}-idempotency"}
    body = json.dumps(configuration()).encode()
    unknown = body.replace(b'"name"', f'"{CANARY}": 1, "name"'.encode())
    for document in (body, body, body.replace(b"Growth", b"Value"), f'{{"{CANARY}'.encode(), b"", unknown):
        yield send(service, idempotent, "/manager/stacks", "POST", document)
    yield send(service, auth | {"Idempotency-Key": CANARY * 100}, "/manager/stacks", "POST", body)
    for more in ("?limit=1", "?limit=x", f"?{CANARY}={CANARY}", f"?cursor={CANARY}", f"/{CANARY}", CANARY):
        yield send(service, auth | {"Cookie": CANARY, "X-Other": CANARY}, f"/manager/stacks{more}")
    yield send(service, auth, "/manager/stacks", "DELETE")
    for value in ("", "Basic ", "Bearer ", f"Bearer {key[:-1]} ", f"Bearer {key} "):
        yield send(service, {"Authorization": value + CANARY})
    # What a client has named is returned to it.
    named = body.replace(b"Growth", CANARY.encode())
    send(service, auth | {"Idempotency-Key": "other"}, "/manager/stacks", "POST", named)


def log_without_secrets(service: RunningService, responses: list[bytes], *secrets: str) -> bytes:
    """Return the log of the service, stopped, once no secret shows there, in *responses* or to `ps`."""
    workers = Path(f"/proc/{service.pid}/task/{service.pid}/children").read_text().split()
    assert workers
    outside = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in (service.pid, *workers)]
    outside.append(Path(f"/proc/{service.pid}/environ").read_bytes())
    service.stop()
    log = service.log_path.read_bytes()
    parts = *(secret[-10:] for secret in secrets), *(api_keys.digest(secret).hex() for secret in secrets)
    for secret in (CANARY, *secrets, *parts):
        assert not any(secret.encode() in text for text in (*responses, *outside, log))
    return log


@pytest.mark.parametrize(("style", "level"), [("json", "debug"), ("text", "debug"), ("json", "warning")])
def test_no_secret_shows_with_the_database(database_url, key, style, level):
    environ = {"STACKMGR_LOG_LEVEL": level, "STACKMGR_LOG_FORMAT": style}
    with running_service(database_url, env=environ) as service:
        responses = list(requests_of_every_kind(service, key))
        log = log_without_secrets(service, responses, key)
    # A line for each request is of the level info.
    assert (len(log.splitlines()) > len(responses)) is (level == "debug")
    assert level == "debug" or b'"level": "info"' not in log


def test_no_secret_shows_with_unkey(database_url, tmp_path):
    key, root_key, external_id = f"{CANARY}-key", f"{CANARY}-root", str(uuid4())
    (tmp_path / "root_key").write_text(root_key)
    with http_server() as unkey:
        environ = {
            "STACKMGR_VERIFIER": "unkey", "STACKMGR_UNKEY_URL": unkey.url, "STACKMGR_VERIFY_TIMEOUT": "2",
            "STACKMGR_UNKEY_ROOT_KEY_FILE": str(tmp_path / "root_key"), "STACKMGR_LOG_LEVEL": "debug",
        }  # fmt: skip
        with running_service(database_url, env=environ) as service:
            unkey.behave = respond(200, accepted(external_id, "id_1"))
            responses = list(requests_of_every_kind(service, key))
            conflict = respond(200, accepted(external_id, "id_2"))
            for behave in (conflict, *MISBEHAVIOURS, unkey.silence):
                unkey.behave = behave
                responses.append(send(service, {"Authorization": f"Bearer {key}"}))
            log = log_without_secrets(service, responses)
        assert any(key.encode() in request.body for request in unkey.requests)
    assert b"binding conflict" in log
