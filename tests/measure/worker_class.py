"""The worker class beside gunicorn's gthread, with the same settings and the application of tests/server.

`connections`: the times of a client's responses, each over a new connection, while 1,600 clients hold theirs.
`reloads`: what clients with kept connections lose in ten reloads, without a proxy, which would hide most of
it.  A careful client looks whether the server has closed a connection before it sends on it again, as pools
do; a careless one sends, and learns it only then.
"""

import argparse
import http.client
import itertools
import random
import resource
import select
import signal
import socket
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from tests.server.gunicorn_process import GunicornProcess, get, post
from tests.support.repeating import repeated
from tests.support.waiting import eventually

OURS, STOCK = "stackmgr.server.worker.Worker", "gthread"
# Mean seconds between two requests of each client: without rest, and up to longer than a stopping worker
# waits for latecomers.
RHYTHMS = (0.0, 0.001, 0.005, 0.02, 0.1, 0.3, 1.0, 2.5)
_REST_SECONDS = 1.0  # between two reloads
_PATIENCE = 30.0

# What the clients that hold connections send before they stop sending, and their number.
_HELD = {
    b"": 1000,
    b"G": 200,
    post("/echo", b"x" * 200_000)[:100_000]: 200,
    get("/", "Connection: close"): 200,  # which the server closes after its response
}
_PROBE_PATIENCE = 8.0
_DRAINED_SECONDS = 2.0  # for which a server waits, after its response, for the client to close
_FILES = 4096


class _Holder:
    """A client that sends a little and then nothing, and reconnects when the server closes its connection."""

    def __init__(self, server: GunicornProcess, data: bytes) -> None:
        self._server, self._data = server, data
        self._open()

    def _open(self) -> None:
        self._since = time.monotonic()
        self.socket: socket.socket = self._server.connect().socket
        self.socket.settimeout(0)
        with suppress(OSError):
            self.socket.send(self._data)

    def renew(self) -> None:
        try:
            while self.socket.recv(65536):
                pass
        except BlockingIOError:
            return
        except ConnectionError:
            pass
        if time.monotonic() - self._since > _DRAINED_SECONDS:
            self.socket.close()
            self._open()


def connections(folder: Path, worker_class: str, seconds: float, share: float = 1.0) -> list[float | None]:
    """Return the time of each response in ms, None where there was none, beside *share* of the holders."""
    settings = f"worker_class, workers, threads = {worker_class!r}, 1, 4\n"
    settings += "worker_connections, backlog, keepalive, graceful_timeout = 10000, 2048, 75, 2\n"
    server = GunicornProcess(folder, settings, deadlines="")
    holders: list[_Holder] = []
    times: list[float | None] = []
    try:
        holders += [
            _Holder(server, data) for data, count in _HELD.items() for _ in range(round(count * share))
        ]
        with repeated(lambda: [holder.renew() for holder in holders], 0.25):
            end = time.monotonic() + seconds
            while not times or time.monotonic() < end:
                times.append(_probe(server))
                time.sleep(0.01)
    finally:
        for holder in holders:
            holder.socket.close()
        server.stop()
    return times


def _probe(server: GunicornProcess) -> float | None:
    began = time.monotonic()
    with suppress(TimeoutError), server.connect() as client:
        client.socket.settimeout(_PROBE_PATIENCE)
        client.send(get("/probe"))
        if client.response().status == 200:
            return (time.monotonic() - began) * 1000
    return None


def _client(port: int, rhythm: float, careful: bool, ended: threading.Event) -> Counter[str]:
    """Send one request after the other on one connection, or on a new one when the server has closed it."""
    chance = random.Random(rhythm)  # noqa: S311 - to be repeatable
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
        except (OSError, http.client.HTTPException):
            connection.close()
            found["without response"] += 1
        if rhythm:
            ended.wait(chance.expovariate(1 / rhythm))
    connection.close()
    return found


def reloads(
    folder: Path, worker_class: str, count: int, *, careful: bool = True, rhythms: Sequence[float] = RHYTHMS
) -> Counter[str]:
    """Reload a server of two workers so many times under the clients, and add up what they saw."""
    settings = f"worker_class, workers, threads, keepalive = {worker_class!r}, 2, 4, 75\n"
    server = GunicornProcess(folder, settings + "graceful_timeout = 30\n", deadlines="")
    ended = threading.Event()
    try:
        with ThreadPoolExecutor(len(rhythms)) as pool:
            clients = [pool.submit(_client, server.port, rhythm, careful, ended) for rhythm in rhythms]
            try:
                for number in range(1, count + 1):
                    time.sleep(_REST_SECONDS)
                    server.process.send_signal(signal.SIGHUP)
                    eventually(lambda: server.log.count("Worker exiting") >= 2 * number, 60)  # noqa: B023
            finally:
                ended.set()
            return sum((each.result() for each in clients), Counter())
    finally:
        server.stop()


def main() -> None:
    """Print a table for gunicorn's worker classes."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.measure.worker_class",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", choices=["connections", "reloads"])
    parser.add_argument("--seconds", type=float, default=15.0, help="of each row of connections (15)")
    parser.add_argument("--reloads", type=int, default=10, help="in each row of reloads (10)")
    chosen = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, _FILES)), hard))
    if chosen.what == "connections":
        print("| worker class | responses | none | p50 ms | p99 ms | slowest ms |\n|---|---|---|---|---|---|")
        for worker_class in (OURS, STOCK):
            with tempfile.TemporaryDirectory() as folder:
                found = connections(Path(folder), worker_class, chosen.seconds)
            times = sorted(each for each in found if each is not None) or [float("nan")]
            at = [f"{times[int(share * (len(times) - 1))]:.1f}" for share in (0.5, 0.99, 1.0)]
            cells = (worker_class, len(times), found.count(None), *at)
            print(f"| {' | '.join(map(str, cells))} |", flush=True)
        return
    columns = ("requests", "connections", "failed", "without response")
    print(f"| worker class | clients | {' | '.join(columns)} |\n|{'---|' * 6}")
    for worker_class, careful in itertools.product((OURS, STOCK), (True, False)):
        with tempfile.TemporaryDirectory() as folder:
            counts = reloads(Path(folder), worker_class, chosen.reloads, careful=careful)
        cells = (worker_class, "careful" if careful else "careless", *(counts[name] for name in columns))
        print(f"| {' | '.join(map(str, cells))} |", flush=True)


if __name__ == "__main__":
    main()
