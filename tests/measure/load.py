"""The load generator, wrk, and what it reports of a run."""

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

WRK = shutil.which("wrk")
_TIMEOUT_SECONDS = 10  # a request that takes longer counts as an error
_GRACE_SECONDS = 60  # how much longer than its run the load generator may take


@dataclass(frozen=True)
class Load:
    """The outcome of a run.  Latencies are in milliseconds; errors are counted, of any kind."""

    requests: int
    seconds: float
    p50: float
    p99: float
    errors: int

    @property
    def rate(self) -> float:
        """Responses a second."""
        return self.requests / self.seconds


def wrk(port: int, prepared: Path, connections: int, seconds: int) -> Load:
    """Send prepared requests over kept connections, each the next one once it has a response.

    One thread of wrk is enough for several times what the service can do, and takes one core at most.
    """
    command = [
        *(WRK or "wrk", "--threads=1", f"--connections={connections}", f"--duration={seconds}s"),
        *(f"--timeout={_TIMEOUT_SECONDS}s", f"--script={Path(__file__).with_name('requests.lua')}"),
        *(f"http://127.0.0.1:{port}/", "--", str(prepared), uuid4().hex[:12]),
    ]
    limit = seconds + _GRACE_SECONDS
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit)
    if ended.returncode != 0:
        raise RuntimeError(f"wrk: {(ended.stderr or ended.stdout)[-2000:]}")
    said = json.loads(ended.stdout.splitlines()[-1])
    errors = said["refused"] + said["broken"]
    return Load(said["requests"], said["seconds"], said["p50"], said["p99"], errors)
