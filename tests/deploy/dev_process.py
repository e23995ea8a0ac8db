"""`stackmgr dev` as a process, with everything that it starts."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, cycle
from pathlib import Path

import psutil

from stackmgr.dev.embedded_postgres import STOP_SIGNALS
from tests.support.processes import completed
from tests.support.server import free_port
from tests.support.waiting import eventually

_READY = "Ctrl-C stops everything."
_DEADLINE = 60.0
COMMAND = (sys.executable, "-m", "stackmgr", "dev")


@dataclass(frozen=True)
class Dev:
    """A `stackmgr dev` that serves; `started` are the processes below it at that moment."""

    process: subprocess.Popen[bytes]
    log_path: Path
    started: list[psutil.Process]

    @property
    def output(self) -> str:
        return self.log_path.read_text()

    @property
    def curl_lines(self) -> list[str]:
        lines = self.output.splitlines()
        variables = "".join(f"{line}\n" for line in lines if re.match(r"(export|ID=)", line))
        commands = [line for line in lines if line.startswith("curl ")]
        assert [len(line) < 100 for line in commands] == [True] * 4
        return [variables + line for line in commands]

    def printed(self, pattern: str) -> str:
        match = re.search(pattern, self.output, re.MULTILINE)
        assert match, self.output
        return match[1]

    def stop(self, signum: signal.Signals = signal.SIGTERM) -> int:
        """Send the signal and then every other until the end, as somebody impatient does."""
        signals = chain((signum,), cycle(STOP_SIGNALS))
        ended = self.process.poll
        eventually(lambda: self.process.send_signal(next(signals)) or ended() is not None, _DEADLINE)
        return self.process.wait()

    def living(self) -> list[psutil.Process]:
        return [each for each in self.started if is_living(each)]


def is_living(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


@contextmanager
def running_dev(
    data: Path, log_path: Path, *, port: int | None = None, command: Sequence[str] = COMMAND
) -> Iterator[Dev]:
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [*command, "--port", str(port or free_port()), "--data", data], stdin=subprocess.DEVNULL,
            stdout=log, stderr=subprocess.STDOUT, env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
    dev = Dev(process, log_path, [])
    try:
        eventually(lambda: _READY in dev.output or process.poll() is not None, _DEADLINE)
        assert process.poll() is None, dev.output
        dev.started.extend(psutil.Process(process.pid).children(recursive=True))
        yield dev
    finally:
        if process.poll() is None:
            dev.stop()
        for left_over in dev.living():
            left_over.kill()


def failed_dev(*arguments: str | Path, command: Sequence[str] = COMMAND) -> str:
    ended = completed([*command, *map(str, arguments)])
    assert (ended.returncode, ended.stdout) == (1, "")
    return ended.stderr
