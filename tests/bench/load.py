"""The two load generators, wrk and pgbench, and what they say of a run."""

import json
import os
import re
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stackmgr.dev import embedded_postgres
from stackmgr.errors import CommandError
from tests.bench import requests
from tests.bench.requests import Task

# A request that takes longer counts as broken.
TIMEOUT = 10
# How many seconds a load generator may take beyond those it is given.
_GRACE = 60


@dataclass(frozen=True)
class Load:
    """What came of a run.  Latencies are in milliseconds; errors are counted, whatever they were."""

    requests: int
    seconds: float
    p50: float
    p99: float
    errors: int

    @property
    def rate(self) -> float:
        """Responses a second."""
        return self.requests / self.seconds


def find_wrk() -> str | None:
    """Return the path of wrk, if there is one."""
    return shutil.which("wrk")


def find_pgbench() -> str | None:
    """Return the path of pgbench: the embedded server's, or one of this machine's."""
    try:
        beside_the_server = [embedded_postgres.programs() / "pgbench"]
    except CommandError:
        beside_the_server = []
    found = shutil.which("pgbench")
    newest_first = sorted(Path("/usr/lib/postgresql").glob("*/bin/pgbench"), reverse=True)
    for path in [*beside_the_server, *([Path(found)] if found else []), *newest_first]:
        if os.access(path, os.X_OK):
            return str(path)
    return None


def _run(command: list[str], seconds: int, folder: str | None = None) -> str:
    """Run a load generator and return what it printed."""
    ended = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=folder, timeout=seconds + _GRACE
    )
    if ended.returncode != 0:
        raise RuntimeError(f"{command[0]}: {(ended.stderr or ended.stdout)[-2000:]}")
    return ended.stdout


def wrk(port: int, prepared: Path, task: Task) -> Load:
    """Send prepared requests.

    One thread of wrk is enough for several times what the service can do, and takes one core at most.
    """
    command = [
        *(find_wrk() or "wrk", "--threads=1", f"--connections={task.connections}"),
        *(
            f"--duration={task.seconds}s",
            f"--timeout={TIMEOUT}s",
            f"--script={Path(__file__).with_name('requests.lua')}",
        ),
        *(
            f"http://127.0.0.1:{port}/",
            "--",
            str(prepared),
            requests.nonce(),
            str(round(task.pause)),
            str(task.connections),
        ),
    ]
    said = json.loads(_run(command, task.seconds).splitlines()[-1])
    errors = said["refused"] + said["broken"]
    return Load(said["requests"], said["seconds"], said["p50"], said["p99"], errors)


def pgbench(conninfo: str, scripts: Sequence[str], variables: Mapping[str, str], task: Task) -> Load:
    """Run scripts, each given as `path@weight`, prepared, and time each run of one."""
    with tempfile.TemporaryDirectory(prefix="stackmgr-pgbench-") as folder:
        command = [
            *(find_pgbench() or "pgbench", "--no-vacuum", "--protocol=prepared", f"--time={task.seconds}"),
            *(
                f"--client={task.connections}",
                f"--jobs={min(task.connections, os.cpu_count() or 1)}",
                "--log",
            ),
            *(f"--define={name}={value}" for name, value in variables.items()),
            *(f"--file={script}" for script in scripts),
            conninfo,
        ]
        said = _run(command, task.seconds, folder)
        times = [
            int(line.split(b" ", 3)[2]) / 1000
            for log in Path(folder).glob("pgbench_log.*")
            for line in log.read_bytes().splitlines()
        ]
    [rate] = re.findall(r"^tps = ([0-9.]+)", said, re.MULTILINE)
    [failed] = re.findall(r"^number of failed transactions: ([0-9]+)", said, re.MULTILINE)
    hundredths = statistics.quantiles(times, n=100, method="inclusive")
    return Load(len(times), len(times) / float(rate), hundredths[49], hundredths[98], int(failed))
