"""The image of deploy/Containerfile: built without a registry, on a base made by debootstrap, and run."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.support.clusters import new_database
from tests.support.memory import memory
from tests.support.processes import completed
from tests.support.programs import require
from tests.support.releases import ROOT
from tests.support.server import create_stack, free_port, send_request
from tests.support.tcp_proxy import Proxy
from tests.support.waiting import eventually

# The Debian release with the oldest supported Python.
SUITE, PYTHON = "bookworm", "3.11"
PORT = "8000"
PATIENCE = 60.0
# No fsync and no documentation: half of the time.
DPKG = "force-unsafe-io\n" + "".join(
    f"path-exclude=/usr/share/{each}/*\n" for each in ("doc", "locale", "man")
)


def sh(*command: str | Path, **options) -> str:
    ended = completed(command, **options)
    assert ended.returncode == 0, f"{command}\n{ended.stdout[-4000:]}\n{ended.stderr[-4000:]}"
    return ended.stdout


def require_privileges() -> None:
    """Skip the test, with the reason, if this environment does not allow building an image."""
    if os.geteuid() != 0:
        pytest.skip("the container image is NOT tested: building it needs root")
    unshare = [require(shutil.which("unshare"), "util-linux"), "--mount", "true"]
    if subprocess.run(unshare, check=False, capture_output=True).returncode != 0:
        pytest.skip("the container image is NOT tested: mount namespaces are not allowed here")


@dataclass
class Image:
    """A built image; buildah stores it in *folder*."""

    folder: Path
    name: str = "localhost/stackmgr"

    def buildah(self, command: str, *arguments: str | Path) -> list[str]:
        store = ("--root", self.folder / "root", "--runroot", self.folder / "run", "--storage-driver", "vfs")
        return [*map(str, ("buildah", *store, command, *arguments))]

    def run(self, command: str, *arguments: str | Path) -> str:
        return sh(*self.buildah(command, *arguments), env=os.environ | {"TMPDIR": str(self.folder)})

    @cached_property
    def config(self) -> dict[str, Any]:
        return json.loads(self.run("inspect", "--type", "image", self.name))["Docker"]["config"]


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    require(shutil.which("buildah"), "buildah")
    debootstrap = require(shutil.which("debootstrap", path="/usr/sbin:/sbin"), "debootstrap")
    require_privileges()
    # The storage driver copies every file of an image for each container.
    with tempfile.TemporaryDirectory(prefix="stackmgr-image-", dir=memory()) as name:
        image = Image(Path(name))
        base, wheels = image.folder / "base", image.folder / "wheels"
        (base / "etc/dpkg/dpkg.cfg.d").mkdir(parents=True)
        (base / "etc/dpkg/dpkg.cfg.d/quick").write_text(DPKG)
        sh(debootstrap, "--variant=minbase", "--include=python3-venv", SUITE, base)
        for unwanted in ("var/cache/apt", "var/lib/apt"):
            shutil.rmtree(base / unwanted)
        (base / "usr/bin/python").symlink_to("python3")
        container = image.run("from", "scratch").strip()
        image.run("add", "--quiet", container, base, "/")
        image.run("commit", "--quiet", "--rm", "--format", "docker", container, "localhost/base")
        # This machine's pip downloads with its own settings; the image's pip needs no index.
        locks = [argument for lock in ("runtime", "build") for argument in ("-r", f"deploy/locks/{lock}.txt")]
        options = ["--quiet", "--require-hashes", "--only-binary=:all:", "--python-version", PYTHON]
        sh(sys.executable, "-m", "pip", "download", *options, "--dest", wheels, *locks, cwd=ROOT)
        (image.folder / "pip.conf").write_text("[global]\nno-index = true\nfind-links = /wheels\n")
        options = ["--isolation", "chroot", "--format", "docker", "--pull-never"]
        options += ["--build-arg", "PYTHON=localhost/base", "--volume", f"{wheels}:/wheels:ro"]
        options += ["--volume", f"{image.folder}/pip.conf:/etc/pip.conf:ro"]
        containerfile = ROOT / "deploy" / "Containerfile"
        image.run("build", *options, "--file", containerfile, "--tag", image.name, ROOT)
        yield image


@contextmanager
def database_over_tcp(server_url: str) -> Iterator[str]:
    with new_database(server_url) as url:
        place = conninfo_to_dict(url)
        host = str(place.get("host", ""))
        if not host.startswith("/"):
            yield url
            return
        with Proxy(f"{host}/.s.PGSQL.{place.get('port', 5432)}") as proxy:
            yield make_conninfo(url, host="127.0.0.1", port=proxy.port)


class Container:
    """A container of the image on another port: without a network namespace, 8000 may be in use."""

    def __init__(self, image: Image, environ: dict[str, str]) -> None:
        self.image, self.port, self.log = image, free_port(), image.folder / "log"
        self._name = image.run("from", "--pull-never", image.name).strip()
        # As containers do not, this one shares the host's network.
        environ = {"STACKMGR_ADMIN_BIND": f"127.0.0.1:{free_port()}", **environ}
        self._environ = [option for item in environ.items() for option in ("--env", "=".join(item))]

    def command(self, *command: str) -> list[str]:
        command = tuple(part.replace(PORT, str(self.port)) for part in command)
        return self.image.buildah("run", "--isolation", "chroot", *self._environ, self._name, "--", *command)

    def is_healthy(self) -> bool:
        kind, *command = self.image.config["Healthcheck"]["Test"]
        assert kind == "CMD"
        return subprocess.run(self.command(*command), check=False, capture_output=True).returncode == 0

    @contextmanager
    def running(self) -> Iterator[subprocess.Popen[bytes]]:
        with (
            self.log.open("wb") as log,
            subprocess.Popen(self.command(*self.image.config["Cmd"]), stdout=log, stderr=log) as process,
        ):
            try:
                yield process
            finally:
                if process.poll() is None:
                    for left_over in psutil.Process(process.pid).children(recursive=True):
                        left_over.kill()


def gunicorn_master(process: subprocess.Popen[bytes]) -> psutil.Process:
    below = psutil.Process(process.pid).children(recursive=True)
    found = [child for child in below if child.cmdline()[1:3] == ["-m", "gunicorn"]]
    [master] = [child for child in found if child.parent() not in found]
    return master


def test_the_image_serves_and_stops_at_its_signal(image, server_url):
    with database_over_tcp(server_url) as url:
        container = Container(image, {"STACKMGR_DATABASE_URL": url})
        assert "the schema is up to date" in sh(*container.command("stackmgr", "migrate"))
        issue = ("stackmgr", "keys", "issue", "--external-id", str(uuid4()))
        key = sh(*container.command(*issue)).strip()
        assert not container.is_healthy()
        with container.running() as process:
            eventually(lambda: container.is_healthy() or process.poll() is not None, PATIENCE)
            assert process.poll() is None, container.log.read_text()
            status, created = create_stack(container.port, key)
            assert status == 201
            path = f"/manager/stacks/{json.loads(created)['id']}"
            assert send_request(container.port, path, {"Authorization": f"Bearer {key}"}) == (200, created)
            master = gunicorn_master(process)
            assert f"{master.uids().real}:{master.gids().real}" == image.config["User"]
            master.send_signal(signal.Signals[image.config["StopSignal"]])
            assert process.wait(PATIENCE) == 0, container.log.read_text()
