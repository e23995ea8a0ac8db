"""Probes `/live` and `/ready` every 50 ms, from a process of its own.

A probe is timed from its connection to its response, so that one that starts late does not count as slow.
"""

import json
import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from tests.support.server import send_request

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

    @property
    def completed(self) -> float:
        return self.sent + self.seconds


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

    def repeat(path: str) -> None:
        while not stopped.wait(_INTERVAL):
            sent, status = time.monotonic(), 0
            with suppress(OSError, HTTPException):
                status, _ = send_request(port, path, timeout=_DEADLINE)
            sys.stdout.write(json.dumps([path, sent, time.monotonic() - sent, status]) + "\n")

    threads = [threading.Thread(target=repeat, args=(path,)) for path in PATHS]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    stopped.set()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    _main(int(sys.argv[1]))
