"""A service with one worker: a request that waits delays no other, and too many are rejected in time."""

import json
import socket
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from uuid import uuid4

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.support.client import STACKS
from tests.support.http_server import http_server, respond
from tests.support.http_wire import connect, head
from tests.support.server import running_service, send_request
from tests.support.tcp_proxy import Proxy
from tests.support.unkey_server import accepted, settings_for
from tests.support.waiting import eventually

# Longer than a test waits for the response that is not to wait: it must not come because time is up.
ENVIRONMENT = {"WEB_CONCURRENCY": "1", "STACKMGR_CONCURRENCY": "16", "STACKMGR_DATABASE_TIMEOUT": "25"}
PATIENCE = 20
WAIT = 3  # of the four that may run with keys that have not been accepted


def status(service, key, timeout=30):
    return send_request(service.port, STACKS, {"Authorization": f"Bearer {key}"}, timeout=timeout)[0]


def check_that_no_other_waits(service, key, expected, is_waiting, release):
    with ThreadPoolExecutor() as threads:
        late = [threads.submit(status, service, key) for _ in range(WAIT)]
        eventually(is_waiting)
        assert status(service, "", PATIENCE) == 401
        assert not any(future.done() for future in late)
        release()
        assert [future.result() for future in late] == [expected] * WAIT


def test_a_hanging_connection_delays_no_other(database_url, new_key):
    place = conninfo_to_dict(database_url)
    with Proxy(f"{place['host']}/.s.PGSQL.{place['port']}") as proxy:
        remote_url = make_conninfo(database_url, host="127.0.0.1", port=proxy.port)
        with running_service(remote_url, env=ENVIRONMENT) as service:
            key = new_key()
            assert status(service, key) == 200
            proxy.hold()
            check_that_no_other_waits(service, key, 200, lambda: proxy.connections > 1, proxy.release)


def test_a_hanging_handshake_delays_no_other(database_url):
    with socket.create_server(("127.0.0.1", 0)) as silent, ExitStack() as accepted:

        def has_begun():
            clients = [accepted.enter_context(silent.accept()[0]) for _ in range(WAIT)]
            return all(each.recv(1) for each in clients)

        url = f"https://127.0.0.1:{silent.getsockname()[1]}"
        environment = ENVIRONMENT | settings_for(url, VERIFY_TIMEOUT="20", DATABASE_TIMEOUT="5")
        with running_service(database_url, env=environment) as service:
            check_that_no_other_waits(service, "key", 503, has_begun, accepted.close)


CLIENTS = 60
CONCURRENCY = 4
REQUEST = {"Authorization": "Bearer key", "X-Request-Id": "overload"}


def get(service):
    with connect(service.port) as wire:
        wire.send(head("GET", "/manager/stacks", REQUEST))
        return wire.checked_response("GET")


def test_hanging_verifier_makes_no_queue(database_url):
    with http_server() as unkey, ExitStack() as cleanup:
        limits = {"CONCURRENCY": str(CONCURRENCY), "QUEUE_TIMEOUT": "1", "VERIFY_TIMEOUT": "3"}
        environment = settings_for(unkey.url, **limits) | {"WEB_CONCURRENCY": "1"}
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
