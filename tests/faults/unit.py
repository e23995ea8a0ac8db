"""The service as the systemd units describe it, with this process in the place of systemd.

It holds the sockets of `stackmgr.socket`, hands them over to what `ExecStart` starts, reloads with
`ExecReload`, stops with SIGTERM, and starts again, `RestartSec` later, what has ended.
"""

import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

import psutil

from tests.deploy.units import values
from tests.support.processes import stop
from tests.support.server import send_request, workers_replaced
from tests.support.waiting import eventually

_PATIENCE = 60.0
_BACKLOG = 2048
# What systemd does between fork and exec: the sockets become 3 and 4, and this process is said to own them.
_HAND_OVER = """
import os, sys
os.dup2(int(sys.argv[1]), 3), os.dup2(int(sys.argv[2]), 4)
os.environ.update(LISTEN_FDS="2", LISTEN_PID=str(os.getpid()))
os.execv(sys.argv[3], sys.argv[3:])
"""


class Unit:
    """One host's service in *folder*, by the units of *deploy*, with the operator's listener."""

    def __init__(self, folder: Path, deploy: Path, environment: Mapping[str, str], *, port: int = 0) -> None:
        self._folder, self._deploy = folder, deploy
        self._sockets = [socket.create_server(("127.0.0.1", each), backlog=_BACKLOG) for each in (port, 0)]
        self.port, self.admin_port = (held.getsockname()[1] for held in self._sockets)
        self._environment = {
            **os.environ, "STACKMGR_ADMIN_BIND": f"127.0.0.1:{self.admin_port}", "WEB_CONCURRENCY": "2",
            **environment,
        }  # fmt: skip
        self._is_stopping = threading.Event()
        self._supervisor = threading.Thread()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        path = self._folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def workers(self) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            return [child for child in psutil.Process(self.pid).children() if _is_worker(child)]
        return []

    def start(self) -> None:
        self._is_stopping.clear()
        self._execute()
        self._supervisor = threading.Thread(target=self._supervise, daemon=True)
        self._supervisor.start()
        self.await_readiness()

    def _execute(self) -> None:
        numbers = [held.fileno() for held in self._sockets]
        (command,) = values("stackmgr.service", "ExecStart", self._deploy)
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _HAND_OVER, *map(str, numbers), *shlex.split(command)],
                env=self._environment, cwd=self._folder, pass_fds=numbers, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def _supervise(self) -> None:
        """Whenever the service has ended, kill what is left of it (KillMode=mixed) and start it again."""
        (pause,) = values("stackmgr.service", "RestartSec", self._deploy)
        assert self._process is not None
        while True:
            self._process.wait()
            if self._is_stopping.is_set():
                return
            self._kill_rest()
            if self._is_stopping.wait(float(pause)):
                return
            self._execute()

    def _kill_rest(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def await_readiness(self) -> None:

        def is_ready() -> bool:
            with suppress(OSError, HTTPException):  # the worker that accepted it has ended
                return send_request(self.admin_port, "/ready", timeout=_PATIENCE)[0] == 200
            return False

        try:
            eventually(is_ready, _PATIENCE)
        except AssertionError as ex:
            raise AssertionError(self.log) from ex

    def await_workers(self, number: int) -> None:
        eventually(lambda: len(self.workers()) == number, _PATIENCE, "a worker is missing")

    def check(self) -> None:
        """Do what a reload begins with, and fail if that would end it."""
        command, _ = values("stackmgr.service", "ExecReload", self._deploy)
        where: Any = {"env": self._environment, "cwd": self._folder, "timeout": _PATIENCE}
        done = subprocess.run(shlex.split(command), check=False, capture_output=True, **where)
        assert done.returncode == 0, done.stderr

    def hang_up(self) -> None:
        with workers_replaced(self.pid, _PATIENCE):
            os.kill(self.pid, signal.SIGHUP)

    def stop(self) -> None:
        self._is_stopping.set()
        if self._process is None:
            return
        try:
            status = stop(self._process)
        finally:
            self._kill_rest()
            self._supervisor.join(_PATIENCE)
            self._process = None
        assert status in (0, -signal.SIGKILL), self.log

    def close(self) -> None:
        self.stop()
        for held in self._sockets:
            held.close()


def _is_worker(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE and "gunicorn" in " ".join(process.cmdline())
    return False
