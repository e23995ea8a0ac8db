"""What clients who keep their connections notice of reloads: `python -m tests.server.reloads`.

Straight at gunicorn, without the proxy that would hide most of it.  A careful client does what pools of
connections do: it looks whether the server has closed a connection before it sends on it again.  One that is
not sends, and learns it only then.
"""

import argparse
import http.client
import itertools
import random
import select
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.server.gunicorn_process import Server, wait_until

OURS, STOCK = "stackmgr.server.worker.Worker", "gthread"

# Mean seconds between two requests of each client: without rest, and up to longer than a stopping worker
# waits for latecomers.
RHYTHMS = (0.0, 0.001, 0.005, 0.02, 0.1, 0.3, 1.0, 2.5)

_SETTINGS = 'worker_class, workers, threads, keepalive, graceful_timeout = "{}", 2, 4, 75, 30'
_PATIENCE = 30.0
_REST = 1.0  # seconds between two reloads


def client(port: int, rhythm: float, careful: bool, ended: threading.Event) -> Counter[str]:
    """Send one request after the other on one connection, or on a new one when the server has closed it."""
    chance = random.Random(rhythm)
    found: Counter[str] = Counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_PATIENCE)
    while not ended.is_set():
        if careful and connection.sock is not None and select.select([connection.sock], [], [], 0)[0]:
            connection.close()
        found["connections"] += connection.sock is None
        found["requests"] += 1
        try:
            connection.request("POST", "/echo", b"{}")
            response = connection.getresponse()
            response.read()
            found["failed"] += response.status != 200
        except (OSError, http.client.HTTPException) as ex:
            connection.close()
            found["without_response"] += 1
            found[f"without_response: {type(ex).__name__}"] += 1
        if rhythm:
            ended.wait(chance.expovariate(1 / rhythm))
    connection.close()
    return found


def measured(
    folder: Path, worker_class: str, reloads: int, careful: bool = True, rhythms: Sequence[float] = RHYTHMS
) -> Counter[str]:
    """Reload a server of two workers so many times while the clients go on, and add up what they saw."""
    server = Server(folder, _SETTINGS.format(worker_class), deadlines="")
    ended = threading.Event()
    try:
        with ThreadPoolExecutor(len(rhythms)) as pool:
            clients = [pool.submit(client, server.port, rhythm, careful, ended) for rhythm in rhythms]
            try:
                for number in range(1, reloads + 1):
                    time.sleep(_REST)
                    server.process.send_signal(signal.SIGHUP)
                    wait_until(lambda: server.log.count("Worker exiting") >= 2 * number, 60)  # noqa: B023
            finally:
                ended.set()
            return sum((each.result() for each in clients), Counter())
    finally:
        server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.server.reloads", description=__doc__)
    parser.add_argument("--reloads", type=int, default=10)
    arguments = parser.parse_args()
    columns = ("requests", "connections", "failed", "without_response")
    print(f"| worker class | clients | reloads | {' | '.join(columns)} |\n|{'---|' * 7}")
    for worker_class, careful in itertools.product((OURS, STOCK), (True, False)):
        with tempfile.TemporaryDirectory() as folder:
            found = measured(Path(folder), worker_class, arguments.reloads, careful)
        counts = (str(found[name]) for name in columns)
        cells = (worker_class, "careful" if careful else "careless", str(arguments.reloads), *counts)
        print(f"| {' | '.join(cells)} |", flush=True)
        for name in sorted(found.keys() - set(columns)):
            print(f"  {name}: {found[name]}")


if __name__ == "__main__":
    main()
