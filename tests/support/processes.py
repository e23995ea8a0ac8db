"""Programs as processes of their own: started once they serve, stopped with their context."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.waiting import eventually

_DEADLINE = 60.0
Process = subprocess.Popen[bytes]


def completed(command: Sequence[Any], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run *command* to its end, whatever its exit status, and keep what it prints."""
    return subprocess.run(command, check=False, capture_output=True, text=True, **options)


def stop(process: subprocess.Popen[Any], number: int = signal.SIGTERM) -> int:
    """Send a signal, unless the process has ended already, and return its exit status."""
    if process.poll() is None:
        process.send_signal(number)
    try:
        return process.wait(_DEADLINE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise


@contextmanager
def running(
    command: Sequence[Any], log: Path, serves: Callable[[Process], bool], *, end: int = signal.SIGTERM,
    **options: Any,
) -> Iterator[Process]:  # fmt: skip
    with log.open("ab") as output:
        given: dict[str, Any] = {"stdout": output, "stderr": subprocess.STDOUT, "start_new_session": True}
        process = subprocess.Popen(command, **given | options)
    try:
        try:
            eventually(lambda: process.poll() is not None or serves(process), _DEADLINE)
            assert process.poll() is None
        except AssertionError as ex:
            raise AssertionError(f"{command[0]} did not start:\n{log.read_text(errors='replace')}") from ex
        yield process
    finally:
        stop(process, end)


@contextmanager
def serving_module(module: str, *arguments: object, given: str = "") -> Iterator[tuple[int, int]]:
    """Yield the port and the pid of a module that reads *given*, prints its port, and serves meanwhile."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-m", module, *map(str, arguments)]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            print(given, file=process.stdin, flush=True)
            yield int(process.stdout.readline()), process.pid
        finally:
            process.stdin.close()
