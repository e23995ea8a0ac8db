"""The spoiled requests that the worker gets in tests/server, sent through nginx to the service itself."""

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from uuid import uuid4

import psutil

from tests.deploy.test_proxy_malformed import parsed
from tests.support.client import STACKS, check_answer
from tests.support.examples import configuration
from tests.support.malformed import A_KEY, A_STACK, good_requests, requests_asked_for, spoiled

REQUESTS = requests_asked_for(1000)
# Many, for most of the time is spent on waiting until nginx gives up a request that does not come to its end.
CLIENTS = 24
# No spoiling makes the service fail, and nobody limits this key.
FAILURES = {429, 500, 503}


def check(request: bytes, received: bytes) -> list[int]:
    """Assert that whatever came back are whole answers as anywhere else, and return what each was."""
    head = request.lstrip(b"\r\n").startswith(b"HEAD ")
    answers = parsed(received, head=head)
    for answer in answers:
        assert answer.status not in FAILURES, (request, received)
        is_page = answer.status == 200 and "ETag" not in answer.headers
        method = "HEAD" if head else "GET" if is_page else "POST"
        check_answer(method, STACKS, answer.status, answer.headers, answer.body)
    return [answer.status for answer in answers]


def new_stack(proxy, key: str) -> str:
    headers = {"Authorization": f"Bearer {key}", "Idempotency-Key": str(uuid4())}
    answer = proxy.ask("POST", STACKS, headers, json.dumps(configuration()).encode())
    assert answer.status == 201
    return json.loads(answer.body)["id"]


def test_fuzz(proxy, service, new_key):
    """Whatever comes: an Error object with its id, the regular answer, or a closed connection."""
    key = new_key()
    stack_id = new_stack(proxy, key)
    assert (len(key), len(stack_id)) == (len(A_KEY), len(A_STACK))
    workers = {process.pid for process in psutil.Process(service.pid).children()}
    requests = spoiled(good_requests(key, stack_id), REQUESTS)
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
