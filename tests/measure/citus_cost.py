"""`python -m tests.measure.citus_cost BINARIES`: what the operations cost on Citus, beside a single node.

One client sends batches of requests, in turns, to services on a coordinator with two workers and to a service
on one PostgreSQL.  Prints the processor time of a request, of the service and all servers together, and its
median latency.  Fails if, with the functions, the processor time exceeds its bound.
"""

import http.client
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote
from uuid import uuid4

import psutil
from psycopg.conninfo import conninfo_to_dict

from stackmgr.database.pool import Database
from stackmgr.operate import issued_keys, migrations
from tests.support.citus import SETTINGS, citus, distribute
from tests.support.client import STACKS
from tests.support.clusters import cluster, new_database
from tests.support.examples import configuration
from tests.support.server import running_service

ROUNDS = 10
BATCH = 50
LARGEST_RATIO = {"get": 2.0, "list": 2.5, "create": 2.0, "update": 2.0}


@dataclass
class Variant:
    """A service with what its requests took, by operation; `masters` have the processes that work for it."""

    run: dict[str, Callable[[], int]]
    masters: list[psutil.Process]
    processor_seconds: dict[str, float] = field(default_factory=dict)
    latencies: dict[str, list[float]] = field(default_factory=dict)

    def used(self) -> float:
        """Return the processor time of all processes so far, in seconds."""
        seconds = 0.0
        for master in self.masters:
            seconds += sum(master.cpu_times()[:4])  # with that of its children that have ended
            for child in master.children():
                with suppress(psutil.NoSuchProcess):
                    seconds += sum(child.cpu_times()[:2])
        return seconds

    def batch(self, operation: str, *, is_counted: bool) -> None:
        """Send a batch of requests."""
        before = self.used()
        for _ in range(BATCH):
            started = time.perf_counter()
            status = self.run[operation]()
            if is_counted:
                self.latencies.setdefault(operation, []).append(time.perf_counter() - started)
            assert status in (200, 201), (operation, status)
        if is_counted:
            spent = self.processor_seconds.get(operation, 0.0)
            self.processor_seconds[operation] = spent + self.used() - before

    def processor_ms(self, operation: str) -> float:
        """Return the processor time of a request."""
        return self.processor_seconds[operation] * 1000 / (ROUNDS * BATCH)

    def latency_ms(self, operation: str) -> float:
        """Return the median latency of a request."""
        return statistics.median(self.latencies[operation]) * 1000


def postmaster(url: str) -> psutil.Process:
    """Return the first process of the cluster that *url* leads to."""
    folder = Path(unquote(str(conninfo_to_dict(url)["host"])))
    return psutil.Process(int((folder / "data" / "postmaster.pid").read_text().splitlines()[0]))


@contextmanager
def subject(url: str, servers: list[str], variant: str) -> Iterator[Variant]:
    """Yield the four operations of a new manager, each returning the status, on a service of one worker."""
    operator = Database(url, role="stackmgr_owner", pool_size=1)
    operator.open()
    with operator.session() as session:
        key = issued_keys.issue(session, str(uuid4()))
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
        yield Variant(
            {
                "get": lambda: send("GET", path)[0],
                "list": lambda: send("GET", STACKS)[0],
                "create": lambda: send("POST", STACKS, body)[0],
                "update": lambda: send("PATCH", path, json.dumps({"name": str(uuid4())}))[0],
            },
            [psutil.Process(service.pid), *map(postmaster, servers)],
        )


def table(head: str, subjects: dict[str, Variant], value: Callable[[Variant, str], float]) -> None:
    """Print a value of each operation and subject, and the last subject's as a multiple of the first's."""
    print(f"{head:32}" + "".join(f"{operation:>8}" for operation in LARGEST_RATIO))
    for name, each in subjects.items():
        print(f"{name:32}" + "".join(f"{value(each, operation):8.2f}" for operation in LARGEST_RATIO))
    first, *_, last = subjects.values()
    ratios = (value(last, operation) / value(first, operation) for operation in LARGEST_RATIO)
    print(f"{'functions / single node':32}" + "".join(f"{ratio:8.2f}" for ratio in ratios))


def main(binaries: Path) -> int:
    """Measure and print; return the exit status."""
    with ExitStack() as stack:
        server = stack.enter_context(cluster(binaries, *SETTINGS))
        single = stack.enter_context(new_database(server))
        nodes = stack.enter_context(citus(binaries))
        distributed = stack.enter_context(new_database(nodes[0]))
        for url in (single, distributed):
            migrations.apply(url)
        distribute(binaries, nodes, distributed)
        subjects = {
            "single node": stack.enter_context(subject(single, [server], "plain")),
            "Citus, plain": stack.enter_context(subject(distributed, nodes, "plain")),
            "Citus, functions": stack.enter_context(subject(distributed, nodes, "citus")),
        }
        for number in range(ROUNDS + 1):
            for operation in LARGEST_RATIO:
                for each in subjects.values():
                    each.batch(operation, is_counted=number > 0)
    table("processor time, ms", subjects, Variant.processor_ms)
    table("p50 of one client, ms", subjects, Variant.latency_ms)
    return int(
        any(
            subjects["Citus, functions"].processor_ms(operation)
            > largest * subjects["single node"].processor_ms(operation)
            for operation, largest in LARGEST_RATIO.items()
        )
    )


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
