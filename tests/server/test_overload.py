"""More requests than greenlets: each is served or rejected within a bounded time."""

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from uuid import uuid4

from tests.support.http_server import http_server, respond
from tests.support.http_wire import connect, head
from tests.support.server import running_service
from tests.support.unkey_server import accepted
from tests.support.waiting import eventually

CLIENTS = 60
CONCURRENCY = 4
REQUEST = {"Authorization": "Bearer key", "X-Request-Id": "overload"}


def get(service):
    """Return the response to a list request."""
    with connect(service.port) as wire:
        wire.send(head("GET", "/manager/stacks", REQUEST))
        return wire.checked_response("GET")


def test_hanging_verifier_makes_no_queue(database_url):
    with http_server() as unkey, ExitStack() as cleanup:
        environment = {
            "WEB_CONCURRENCY": "1", "STACKMGR_CONCURRENCY": str(CONCURRENCY), "STACKMGR_QUEUE_TIMEOUT": "1",
            "STACKMGR_VERIFIER": "unkey", "STACKMGR_UNKEY_URL": unkey.url, "STACKMGR_UNKEY_ROOT_KEY": "root",
            "STACKMGR_VERIFY_TIMEOUT": "3",
        }  # fmt: skip
        service = cleanup.enter_context(running_service(database_url, env=environment))
        unkey.behave = unkey.silence
        with ThreadPoolExecutor(CLIENTS) as pool:
            found = list(pool.map(get, [service] * CLIENTS))
        assert Counter(response.status for response in found) == {503: CLIENTS}
        # In a queue, each would wait for its verification, and the last for those of all.
        rejected = [response for response in found if response.headers["Retry-After"]]
        assert len(rejected) >= CLIENTS - 2 * CONCURRENCY
        assert {response.headers["X-Request-Id"] for response in rejected} == {"overload"}
        assert len(unkey.requests) <= CLIENTS - len(rejected)  # no key of a rejected request was verified
        lines = [json.loads(line) for line in service.log().splitlines()]
        reasons = Counter(line.get("reason") for line in lines if line["message"] == "request")
        assert reasons["queue_timeout"] == len(rejected)
        queued = [line["queued_ms"] for line in lines if line.get("reason") == "queue_timeout"]
        assert min(queued) >= 1000
        hung = [line["verifier_ms"] for line in lines if line.get("reason") == "verifier_timeout"]
        assert min(hung) >= 3000
        unkey.release.set()
        unkey.behave = respond(200, accepted(str(uuid4()), f"id_{uuid4()}"))
        eventually(lambda: get(service).status == 200)
