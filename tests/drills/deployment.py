"""Two instances of the service as the systemd units describe them, behind nginx as deploy/nginx.conf does.

This process stands in for systemd: it holds the sockets of `stackmgr.socket`, hands them over to what
`ExecStart` starts, reloads with `ExecReload` and stops with SIGTERM.
"""

import http.client
import os
import shlex
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.deploy.units import values
from tests.support.nginx import Proxy, nginx_before
from tests.support.releases import switch
from tests.support.server import send_request, workers_replaced

_PATIENCE = 60.0
_CLIENT_TIMEOUT = 40.0
_BACKLOG = 2048
# What systemd does between fork and exec: the sockets become 3 and 4, and this process is said to own them.
_HAND_OVER = """
import os, sys
os.dup2(int(sys.argv[1]), 3), os.dup2(int(sys.argv[2]), 4)
os.environ.update(LISTEN_FDS="2", LISTEN_PID=str(os.getpid()))
os.execv(sys.argv[3], sys.argv[3:])
"""


class Instance:
    """One host's service, with the operator's listener beside the managers' one."""

    def __init__(self, folder: Path, current: Path, database_url: str) -> None:
        self._folder = folder
        self._current = current
        self._sockets = [socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG) for _ in range(2)]
        self.port, self._admin_port = (held.getsockname()[1] for held in self._sockets)
        self._environment = {
            **os.environ,
            "PYTHONPATH": str(current),
            "STACKMGR_DATABASE_URL": database_url,
            "STACKMGR_ADMIN_BIND": f"127.0.0.1:{self._admin_port}",
            "WEB_CONCURRENCY": "2",
            # The drill does not measure a slow machine.
            "STACKMGR_DATABASE_TIMEOUT": "20",
        }
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        return (self._folder / "log").read_text()

    def start(self) -> None:
        """Do what `systemctl start` does, and return once the service says that it is ready."""
        self.launch()
        self.await_readiness()

    def launch(self) -> None:
        numbers = [held.fileno() for held in self._sockets]
        (command,) = values("stackmgr.service", "ExecStart", self._current / "deploy")
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _HAND_OVER, *map(str, numbers), *shlex.split(command)],
                env=self._environment,
                cwd=self._folder,
                pass_fds=numbers,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def await_readiness(self) -> None:
        assert send_request(self._admin_port, "/ready", timeout=_PATIENCE)[0] == 200, self.log

    def reload(self) -> None:
        """Do what `systemctl reload` does, and return once no worker of before is left."""
        assert self._process is not None
        with workers_replaced(self._process.pid, _PATIENCE):
            for command in values("stackmgr.service", "ExecReload", self._current / "deploy"):
                words = shlex.split(command.replace("$MAINPID", str(self._process.pid)))
                done = subprocess.run(
                    words, env=self._environment, cwd=self._folder, check=False, capture_output=True
                )
                assert done.returncode == 0, done.stderr

    def stop(self) -> None:
        """Do what `systemctl stop` does, if the service runs."""
        if self._process is not None:
            self._process.terminate()
            assert self._process.wait(_PATIENCE) == 0, self.log
            self._process = None

    def close(self) -> None:
        """Give up the sockets too."""
        self.stop()
        for held in self._sockets:
            held.close()

    def says(self) -> str:
        """Return the message of this instance's 404, which distinguishes the releases."""
        return send_request(self.port, "/", timeout=_PATIENCE)[1]


@dataclass(frozen=True)
class Deployment:
    """Releases in *folder*, the instances that run the current one, and nginx before them."""

    folder: Path
    database_url: str
    instances: list[Instance]
    proxy: Proxy
    connections: list[http.client.HTTPSConnection] = field(default_factory=list)

    def use(self, release: str) -> None:
        """Make *release* the one that is started next, and taken at a reload."""
        switch(self.folder / "current", release)

    def command(self, release: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Run the operator's command of *release*."""
        environment = {
            **os.environ,
            "PYTHONPATH": str(self.folder / release),
            "STACKMGR_DATABASE_URL": self.database_url,
        }
        return subprocess.run(
            [sys.executable, "-m", "stackmgr", *words],
            env=environment,
            cwd=self.folder,
            check=False,
            capture_output=True,
            text=True,
        )

    def connect(self) -> http.client.HTTPSConnection:
        """Return a client's connection, not yet made; it is closed with the deployment."""
        context = ssl.create_default_context(cafile=self.proxy.folder / "tls/fullchain.pem")
        connection = http.client.HTTPSConnection(
            "localhost", self.proxy.port, timeout=_CLIENT_TIMEOUT, context=context
        )
        self.connections.append(connection)
        return connection


@contextmanager
def deployed(folder: Path, database_url: str, release: str) -> Iterator[Deployment]:
    """Run *release*, one of those in *folder*, on two hosts until the context ends."""
    switch(folder / "current", release)
    with ExitStack() as stack:
        instances = []
        for name in ("one", "two"):
            (folder / name).mkdir()
            instances.append(Instance(folder / name, folder / "current", database_url))
            stack.callback(instances[-1].close)
            instances[-1].launch()
        for instance in instances:
            instance.await_readiness()
        (folder / "nginx").mkdir()
        proxy = stack.enter_context(
            nginx_before(folder / "nginx", *(instance.port for instance in instances))
        )
        deployment = Deployment(folder, database_url, instances, proxy)
        try:
            yield deployment
        finally:
            for connection in deployment.connections:
                connection.close()
