"""The service as it runs in production: `gunicorn -c deploy/gunicorn.conf.py`, in processes of its own."""

import http.client
import json
import os
import random
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

import psutil

from stackmgr import paths
from tests.support import processes
from tests.support.examples import configuration
from tests.support.waiting import eventually

SETTINGS = paths.directory("deploy") / "gunicorn.conf.py"
GUNICORN_COMMAND = (sys.executable, "-m", "gunicorn", "-c", str(SETTINGS))
# Below those that Linux gives to connections, and to who binds port 0.
_PORTS = range(10_000, 32_768)
_START_DEADLINE = 60.0


@dataclass(frozen=True)
class RunningService:
    """A gunicorn that responds; `pid` is that of its master.  Its output goes to `log_path`."""

    port: int
    log_path: Path
    process: subprocess.Popen[bytes]

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        return self.process.pid

    def log(self) -> str:
        request_id = str(uuid4())
        send_request(self.port, "/", {"X-Request-Id": request_id})
        eventually(lambda: request_id in self.log_path.read_text())
        return self.log_path.read_text()

    def stop(self) -> int:
        return processes.stop(self.process)


@contextmanager
def running_service(
    database_url: str, *, env: Mapping[str, str] | None = None, args: Sequence[str] = (), **options: Any
) -> Iterator[RunningService]:
    environ = {"STACKMGR_DATABASE_URL": database_url, **(env or {})}
    with running(GUNICORN_COMMAND, args, env=environ, **options) as service:
        yield service


@contextmanager
def running(
    gunicorn: Sequence[str], args: Sequence[str] = (), *, env: Mapping[str, str], **options: Any
) -> Iterator[RunningService]:
    """Run the command *gunicorn* with *args*; *options* are those of Popen."""
    port = free_port()

    def serves(process: subprocess.Popen[bytes]) -> bool:
        # The master accepts connections before there is any worker.
        return port in listening_ports(process.pid) and _responds(port)

    command = [*gunicorn, "--bind", f"127.0.0.1:{port}", *args]
    with TemporaryDirectory(prefix="stackmgr-") as logs:
        log = Path(logs) / "log"
        with processes.running(command, log, serves, env=os.environ | env, **options) as process:
            yield RunningService(port, log, process)


def free_port() -> int:
    """Return a port of 127.0.0.1 on which nothing listens, and which no connection is given meanwhile."""
    while listens(port := random.SystemRandom().choice(_PORTS)):
        pass
    return port


def listening_ports(pid: int) -> set[int]:
    """Return the TCP ports on which a process listens: a stranger may have taken a free port meanwhile."""
    try:
        connections = psutil.Process(pid).net_connections("inet")
    except psutil.AccessDenied:  # to the files of a process that is ending, for another user than root
        return set()
    return {each.laddr.port for each in connections if each.status == psutil.CONN_LISTEN}


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@dataclass(frozen=True)
class Response:
    """A response; the values of its header fields are Latin-1 text."""

    status: int
    headers: Message
    body: bytes
    version: int = 11

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def exchange(
    port: int,
    path: str,
    headers: Mapping[str, str] | None = None,
    method: str = "GET",
    body: str | bytes | None = None,
    *,
    timeout: float = _START_DEADLINE,
) -> Response:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        return Response(response.status, response.headers, response.read())
    finally:
        connection.close()


def send_request(port: int, path: str, *request: Any, **options: Any) -> tuple[int, str]:
    received = exchange(port, path, *request, **options)
    return received.status, received.body.decode()


def create_stack(port: int, key: str, *, timeout: float = _START_DEADLINE, **headers: str) -> tuple[int, str]:
    given = {"Authorization": f"Bearer {key}", "Idempotency-Key": str(uuid4()), **headers}
    body = json.dumps(configuration())
    return send_request(port, "/manager/stacks", given, "POST", body, timeout=timeout)


@contextmanager
def workers_replaced(master: int, patience: float = _START_DEADLINE) -> Iterator[None]:
    """End the context once no worker is left that *master* had when it began, and there is another."""
    before = set(psutil.Process(master).children())
    yield

    def replaced() -> bool:
        now = set(psutil.Process(master).children())
        return bool(now) and not before & now

    eventually(replaced, patience, "the old workers are still there")


def _responds(port: int) -> bool:
    try:
        return send_request(port, "/")[0] == 404
    except OSError:
        return False
