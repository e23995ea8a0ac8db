"""`python -m tests.citus_cost BINARIES`: what the operations cost on Citus, beside a single node.

One client sends one request at a time to a service on a coordinator with two workers and to a service on one
PostgreSQL, in turns.  Prints medians and fails if a create or an update takes more than three times as long.
"""

import http.client
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from uuid import uuid4

from stackmgr.access import api_keys
from stackmgr.database import migrations
from stackmgr.database.pool import Database
from tests.support.citus import SETTINGS, citus, distribute
from tests.support.client import STACKS
from tests.support.clusters import cluster, new_database
from tests.support.examples import configuration
from tests.support.server import running_service

ROUNDS = 400
WARM_UP = 50
LARGEST_RATIO = 3.0

Operation = Callable[[], int]


@contextmanager
def operations(url: str, variant: str) -> Iterator[dict[str, Operation]]:
    """Yield the four operations of a new manager, each returning the status, on a service of one worker."""
    operator = Database(url, role="stackmgr_owner", pool_size=1)
    operator.open()
    with operator.session() as session:
        key = api_keys.issue(session, str(uuid4()))
    operator.close()
    body = json.dumps(configuration())
    with running_service(url, env={"STACKMGR_SQL_VARIANT": variant, "WEB_CONCURRENCY": "1"}) as service:
        connection = http.client.HTTPConnection("127.0.0.1", service.port)

        def send(method: str, path: str, body: str | None = None) -> tuple[int, bytes]:
            headers = {"Authorization": f"Bearer {key}", "Idempotency-Key": str(uuid4())}
            if body:
                headers["Content-Type"] = "application/json"
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return response.status, response.read()

        path = f"{STACKS}/{json.loads(send('POST', STACKS, body)[1])['id']}"
        yield {
            "get": lambda: send("GET", path)[0],
            "list": lambda: send("GET", STACKS)[0],
            "create": lambda: send("POST", STACKS, body)[0],
            "update": lambda: send("PATCH", path, json.dumps({"name": str(uuid4())}))[0],
        }


def main(binaries: Path) -> int:
    """Measure and print; return the exit status."""
    with ExitStack() as stack:
        single = stack.enter_context(new_database(stack.enter_context(cluster(binaries, *SETTINGS))))
        nodes = stack.enter_context(citus(binaries))
        distributed = stack.enter_context(new_database(nodes[0]))
        for url in (single, distributed):
            migrations.apply(url)
        distribute(binaries, nodes, distributed)
        services = {
            "single node": stack.enter_context(operations(single, "plain")),
            "Citus, plain": stack.enter_context(operations(distributed, "plain")),
            "Citus, functions": stack.enter_context(operations(distributed, "citus")),
        }
        times: dict[tuple[str, str], list[float]] = {}
        for number in range(WARM_UP + ROUNDS):
            for name, service in services.items():
                for operation, run in service.items():
                    started = time.perf_counter()
                    status = run()
                    taken = time.perf_counter() - started
                    assert status in (200, 201), (name, operation, status)
                    if number >= WARM_UP:
                        times.setdefault((name, operation), []).append(taken * 1000)
    medians = {what: statistics.median(values) for what, values in times.items()}
    ratios = {}
    print(f"p50 in ms of {ROUNDS} requests, one at a time")
    print(" " * 18 + "".join(f"{operation:>8}" for operation in services["single node"]))
    for name, service in services.items():
        print(f"{name:18}" + "".join(f"{medians[name, operation]:8.2f}" for operation in service))
        ratios = {
            operation: medians[name, operation] / medians["single node", operation] for operation in service
        }
    print(f"{'functions / single':18}" + "".join(f"{ratio:8.2f}" for ratio in ratios.values()))
    return int(max(ratios["create"], ratios["update"]) > LARGEST_RATIO)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
