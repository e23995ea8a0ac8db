"""Two instances of the service as the systemd units describe them, behind nginx as deploy/nginx.conf does."""

import http.client
import os
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.matrix.unit import Unit
from tests.support.nginx import Proxy, nginx_before
from tests.support.releases import switch

_CLIENT_TIMEOUT = 40.0


@dataclass(frozen=True)
class Deployment:
    """Releases in *folder*, the instances that run the current one, and nginx before them."""

    folder: Path
    database_url: str
    instances: list[Unit]
    proxy: Proxy
    connections: list[http.client.HTTPSConnection] = field(default_factory=list)

    def use(self, release: str) -> None:
        """Make *release* the one that is started next, and taken at a reload."""
        switch(self.folder / "current", release)

    def command(self, release: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Run the operator's command of *release*."""
        return run_command(self.folder / release, self.database_url, *words)

    def connect(self) -> http.client.HTTPSConnection:
        """Return a client's connection, not yet made; it is closed with the deployment."""
        context = ssl.create_default_context(cafile=self.proxy.folder / "tls/fullchain.pem")
        connection = http.client.HTTPSConnection(
            "localhost", self.proxy.port, timeout=_CLIENT_TIMEOUT, context=context
        )
        self.connections.append(connection)
        return connection


def run_command(release: Path, database_url: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the operator's command of the release in a folder."""
    return subprocess.run(
        [sys.executable, "-m", "stackmgr", *words],
        env={**os.environ, "PYTHONPATH": str(release), "STACKMGR_DATABASE_URL": database_url},
        cwd=release.parent,
        check=False,
        capture_output=True,
        text=True,
    )


@contextmanager
def deployed(folder: Path, database_url: str, release: str) -> Iterator[Deployment]:
    """Run *release*, one of those in *folder*, on two hosts until the context ends."""
    switch(folder / "current", release)
    environment = {
        "PYTHONPATH": str(folder / "current"),
        "STACKMGR_DATABASE_URL": database_url,
        "STACKMGR_METRICS_DIR": "metrics",
        # The drill does not measure a slow machine.
        "STACKMGR_DATABASE_TIMEOUT": "20",
    }
    with ExitStack() as stack:
        instances = []
        for name in ("one", "two"):
            (folder / name).mkdir()
            instances.append(Unit(folder / name, folder / "current" / "deploy", environment))
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
