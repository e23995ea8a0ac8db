"""Memory for large pages that no client reads: bounded, and freed afterwards."""

import json
import time
from contextlib import ExitStack
from uuid import uuid4

import psutil

from stackmgr.access import api_keys
from tests.support import http_wire
from tests.support.examples import configuration
from tests.support.server import running_service, send_request
from tests.support.waiting import eventually

STACKS = 100
NAME = "\N{GRINNING FACE}" * 65_000  # nearly the largest body
CLIENTS = 12
MIB = 1_048_576
# The rows of a page that waits for room are held by its request, and at most one request has each connection.
ENVIRONMENT = {"WEB_CONCURRENCY": "1", "STACKMGR_DATABASE_CONNECTIONS": "4"}


def test_unread_pages_take_a_bounded_amount_of_memory(database_url, operator):
    with operator.session() as session:
        authorization = {"Authorization": f"Bearer {api_keys.issue(session, str(uuid4()))}"}
    body = json.dumps(configuration(name=NAME), ensure_ascii=False).encode()
    request = http_wire.head("GET", f"/manager/stacks?limit={STACKS}", dict(authorization))
    with running_service(database_url, env=ENVIRONMENT) as service, ExitStack() as stack:
        for number in range(STACKS):
            headers = {**authorization, "Idempotency-Key": str(number)}
            assert send_request(service.port, "/manager/stacks", headers, "POST", body)[0] == 201
        (worker,) = psutil.Process(service.pid).children()
        before = highest = worker.memory_info().rss
        for _ in range(CLIENTS):
            stack.enter_context(http_wire.connect(service.port, request, receive_buffer=4096))
        end = time.monotonic() + 8
        while (now := time.monotonic()) < end or (highest - before < 50 * MIB and now < end + 30):
            highest = max(highest, worker.memory_info().rss)
            time.sleep(0.05)
        assert 50 * MIB < highest - before < 400 * MIB  # without a limit 1,282 MiB; 192 with it
        stack.close()
        eventually(lambda: worker.memory_info().rss < before + 30 * MIB)
