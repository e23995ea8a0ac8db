"""The malformed requests of tests/server, sent through nginx to the service itself."""

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

import psutil

from tests.support.client import STACKS, check_response
from tests.support.examples import configuration
from tests.support.malformed import (
    SAMPLE_KEY,
    SAMPLE_STACK_ID,
    fuzz_request_count,
    malformed_requests,
    valid_requests,
)
from tests.support.nginx import parse_responses

REQUESTS = fuzz_request_count(1000)
# Many, because most of the time nginx waits for the rest of an unfinished request.
CLIENTS = 24
# No malformed request makes the service fail, and this key has no rate limit.
FAILURES = {429, 500, 503}


def check(request: bytes, received: bytes) -> list[int]:
    """Check every response received and return their statuses."""
    head = request.lstrip(b"\r\n").startswith(b"HEAD ")
    responses = parse_responses(received, head=head)
    for response in responses:
        assert response.status not in FAILURES, (request, received)
        is_page = response.status == 200 and "ETag" not in response.headers
        method = "HEAD" if head else "GET" if is_page else "POST"
        check_response(method, STACKS, response.status, response.headers, response.body)
    return [response.status for response in responses]


def test_fuzz(proxy, service, new_key):
    """Every request gets an Error object with its id, a regular response, or a closed connection."""
    key = new_key()
    headers = {"Authorization": f"Bearer {key}", "Idempotency-Key": "fuzz"}
    created = proxy.request("POST", STACKS, headers, json.dumps(configuration()).encode())
    stack_id = created.json["id"]
    assert (len(key), len(stack_id)) == (len(SAMPLE_KEY), len(SAMPLE_STACK_ID))
    workers = {process.pid for process in psutil.Process(service.pid).children()}
    requests = malformed_requests(valid_requests(key, stack_id), REQUESTS)
    turn = Lock()

    def client(_: int) -> Counter[str]:
        outcomes: Counter[str] = Counter()
        while True:
            with turn:
                request = next(requests, None)
            if request is None:
                return outcomes
            found = check(request, proxy.send(request))
            outcomes[" then ".join(map(str, found)) or "closed"] += 1

    with ThreadPoolExecutor(CLIENTS) as pool:
        outcomes = sum(pool.map(client, range(CLIENTS)), Counter())
    print(outcomes)
    assert sum(outcomes.values()) == REQUESTS
    assert outcomes["400"] > REQUESTS / 4
    assert outcomes["closed"] < REQUESTS / 4
    assert {process.pid for process in psutil.Process(service.pid).children()} == workers
    log = service.log_path.read_text()
    assert "Traceback" not in log
    assert key not in log
    for name in ("stackmgr.log", "stackmgr.error.log"):
        assert key.encode() not in (proxy.folder / name).read_bytes()
