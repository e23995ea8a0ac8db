"""Probes `/live` and `/ready` every 50 ms, from a process of its own.

A probe is timed from its connection to its response, so that one that starts late does not count as slow.
"""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

PATHS = ("/live", "/ready")
_INTERVAL = 0.05
_DEADLINE = 60.0
_NICE = -10


@dataclass(frozen=True)
class Probe:
    """One probe, in the time of the monotonic clock; `status` is 0 without a response."""

    path: str
    sent: float
    seconds: float
    status: int


class Prober:
    """The process, from its start to `stop`; it writes its probes to *path*."""

    def __init__(self, port: int, path: Path) -> None:
        self._path = path
        command = [sys.executable, "-m", "tests.faults.prober", str(port)]
        with path.open("w") as output:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output)

    def stop(self) -> list[Probe]:
        """End the process and return all probes in the order in which they were sent."""
        self._process.communicate(timeout=_DEADLINE * 2)
        probes = [Probe(*json.loads(line)) for line in self._path.read_text().splitlines()]
        return sorted(probes, key=lambda probe: probe.sent)


def _main(port: int) -> None:
    with suppress(OSError):  # only root may
        os.nice(_NICE)
    stopped = threading.Event()
    threads = [threading.Thread(target=_repeat, args=(port, path, stopped, sys.stdout)) for path in PATHS]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    stopped.set()
    for thread in threads:
        thread.join()


def _repeat(port: int, path: str, stopped: threading.Event, output: IO[str]) -> None:
    while not stopped.wait(_INTERVAL):
        sent = time.monotonic()
        status = _probe(port, path)
        output.write(json.dumps([path, sent, time.monotonic() - sent, status]) + "\n")


def _probe(port: int, path: str) -> int:
    """Return the status of one request on a connection of its own, or 0."""
    received = b""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=_DEADLINE) as connection:
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            while b"\r\n\r\n" not in received and (data := connection.recv(4096)):
                received += data
    except OSError:
        return 0
    return int(received.split()[1]) if received.startswith(b"HTTP/1.1 ") else 0


if __name__ == "__main__":
    _main(int(sys.argv[1]))
