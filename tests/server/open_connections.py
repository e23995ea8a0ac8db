"""Measure a client's response times while others hold 1,600 connections: `python -m tests.server.open_connections`.

It measures the project's worker class and gunicorn's gthread with the same settings and the application in
app.py.  The client opens a connection to gunicorn for each request.
"""

import argparse
import resource
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.server.gunicorn_process import Server, get, post

OURS, STOCK = "stackmgr.server.worker.Worker", "gthread"

# What each kind of client sends before it stops sending, and the number of such clients.
HOLDERS = {
    "silent": (b"", 1000),
    "one byte": (b"G", 200),
    "half a body": (post("/echo", b"x" * 200_000)[:100_000], 200),
    "response received, but not closing": (get("/", "Connection: close"), 200),
}

_SETTINGS = """
worker_class, workers, threads = "{worker_class}", 1, 4
worker_connections, backlog, keepalive, graceful_timeout = 10000, 2048, 75, 2
"""
_PATIENCE = 8.0  # seconds that the client waits for a response
_PAUSE = 0.01
_DRAINED = 2.0  # seconds for which a server waits, after its response, for the client to close
_FILES = 4096


class Holder:
    """A client that sends a little and then nothing, and reconnects when the server closes its connection."""

    def __init__(self, server: Server, data: bytes) -> None:
        self._server = server
        self._data = data
        self.ended = False
        self._open()

    def _open(self) -> None:
        self.since = time.monotonic()
        self._socket = self._server.connect().socket
        self._socket.setblocking(False)
        with suppress(OSError):
            self._socket.send(self._data)

    def renew(self) -> None:
        if self._is_over() and time.monotonic() - self.since > _DRAINED:
            self._socket.close()
            self._open()

    def _is_over(self) -> bool:
        try:
            while self._socket.recv(65536):
                pass
        except BlockingIOError:
            return False
        except ConnectionError:
            pass
        return True

    def close(self) -> None:
        self._socket.close()


@dataclass(frozen=True)
class Outcome:
    """The times of the client's responses in seconds, and the number of requests without one."""

    times: list[float]
    without_response: int

    def percentile(self, share: float) -> str:
        if not self.times:
            return "no response"
        return f"{sorted(self.times)[int(share * (len(self.times) - 1))] * 1000:.1f} ms"


def probed(server: Server, seconds: float) -> Outcome:
    """Send one request after another for *seconds*, at least one."""
    times, without_response = [], 0
    end = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        try:
            with server.connect() as client:
                client.socket.settimeout(_PATIENCE)
                client.send(get("/probe"))
                is_served = client.response().status == 200
        except TimeoutError:
            is_served = False
        if is_served:
            times.append(time.monotonic() - began)
        without_response += not is_served
        if time.monotonic() > end:
            return Outcome(times, without_response)
        time.sleep(_PAUSE)


def measured(folder: Path, worker_class: str, seconds: float, share: float = 1.0) -> Outcome:
    """Start a server, connect *share* of the holders, and send requests for *seconds*."""
    server = Server(folder, _SETTINGS.format(worker_class=worker_class), deadlines="")
    ended = threading.Event()
    holders = []

    def keep() -> None:
        while not ended.wait(0.25):
            for holder in holders:
                holder.renew()

    keeper = threading.Thread(target=keep)
    try:
        for data, count in HOLDERS.values():
            holders += [Holder(server, data) for _ in range(round(count * share))]
        keeper.start()
        return probed(server, seconds)
    finally:
        ended.set()
        if keeper.ident:
            keeper.join()
        for holder in holders:
            holder.close()
        server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.server.open_connections", description=__doc__)
    parser.add_argument("--seconds", type=float, default=15.0, help="duration of each measurement (15)")
    arguments = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, _FILES)), hard))
    print("| worker class | responses | no response | p50 | p99 | slowest |\n|---|---|---|---|---|---|")
    for worker_class in (OURS, STOCK):
        with tempfile.TemporaryDirectory() as folder:
            outcome = measured(Path(folder), worker_class, arguments.seconds)
        times = [outcome.percentile(share) for share in (0.5, 0.99, 1.0)]
        cells = (worker_class, str(len(outcome.times)), str(outcome.without_response), *times)
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
