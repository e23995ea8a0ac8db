"""The service as it runs in production: `gunicorn -c deploy/gunicorn.conf.py`, in processes of its own."""

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from stackmgr import paths

_START_DEADLINE = 20.0
_STOP_DEADLINE = 35.0


@dataclass(frozen=True)
class RunningService:
    """A gunicorn that answers; `pid` is its master's.  What it prints goes to `log_path`."""

    port: int
    log_path: Path
    process: subprocess.Popen[bytes]

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        return self.process.pid

    def stop(self) -> int:
        """Send SIGTERM, unless the process has ended already, and return its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(_STOP_DEADLINE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise


@contextmanager
def running_service(
    database_url: str, *, env: Mapping[str, str] | None = None, args: Sequence[str] = ()
) -> Iterator[RunningService]:
    """Run the service on a free port until the context ends; the log is gone with it.

    *env* is added to this process's environment, *args* to gunicorn's command line.  Raises AssertionError,
    with the log, if the service does not come to answer.
    """
    gunicorn = [sys.executable, "-m", "gunicorn", "-c", str(paths.directory("deploy") / "gunicorn.conf.py")]
    with running(gunicorn, args, env={"STACKMGR_DATABASE_URL": database_url, **(env or {})}) as service:
        yield service


@contextmanager
def running(
    gunicorn: Sequence[str],
    args: Sequence[str] = (),
    *,
    env: Mapping[str, str],
    folder: Path | None = None,
) -> Iterator[RunningService]:
    """Run a gunicorn on a free port, from *folder*, until the context ends.

    Its log may be emptied while it runs: each line goes to the end of the file.
    """
    port = free_port()
    with TemporaryDirectory(prefix="stackmgr-") as logs:
        log_path = Path(logs) / "log"
        with log_path.open("ab") as log:
            process = subprocess.Popen(
                [*gunicorn, "--bind", f"127.0.0.1:{port}", *args],
                cwd=folder,
                env={**os.environ, **env},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        service = RunningService(port, log_path, process)
        try:
            _wait_for_an_answer(service)
            yield service
        finally:
            service.stop()


def free_port() -> int:
    """Return a port of 127.0.0.1 on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def ask(  # noqa: PLR0913 - the parts of a request
    port: int,
    path: str,
    headers: Mapping[str, str] | None = None,
    method: str = "GET",
    body: str | None = None,
    *,
    timeout: float = _START_DEADLINE,
) -> tuple[int, str]:
    """Return status and body of the answer to one request on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


@contextmanager
def workers_replaced(master: int, patience: float = _START_DEADLINE) -> Iterator[None]:
    """End the context once no worker is left that *master* had when it began, and there is another."""
    before = set(psutil.Process(master).children())
    yield
    deadline = time.monotonic() + patience
    while before & (now := set(psutil.Process(master).children())) or not now:
        assert time.monotonic() < deadline, "the old workers stay"
        time.sleep(0.02)


def _wait_for_an_answer(service: RunningService) -> None:
    """Return once a worker has answered: the master accepts connections before there is any worker."""
    deadline = time.monotonic() + _START_DEADLINE
    while not _answers(service.port):
        if service.process.poll() is not None or time.monotonic() > deadline:
            raise AssertionError(f"the service did not start:\n{service.log_path.read_text()}")
        time.sleep(0.05)


def _answers(port: int) -> bool:
    try:
        return ask(port, "/")[0] == 404
    except OSError:
        return False
