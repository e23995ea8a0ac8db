"""Two PostgreSQL nodes under Debian's Patroni and the deployed file, whose primary dies and rejoins."""

import itertools
import json
import os
import random
import re
import shutil
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path
from signal import SIGKILL
from typing import Any

import psutil
import psycopg

from stackmgr import paths
from tests.faults.cell import Bound, Cell
from tests.faults.report import Report, judged
from tests.faults.stage import ENVIRONMENT, Evidence, NoPlace
from tests.support.processes import running
from tests.support.server import free_port, listens, running_service
from tests.support.waiting import eventually
from tests.support.workload import Workload, new_managers

_TEMPLATE = paths.directory("deploy") / "patroni" / "patroni.yml"
_BINARIES = Path("/usr/lib/postgresql/15/bin")
_CLIENTS = 6
_PAUSE = 0.02
_SETTLE = 2.0
# Seconds in which a node is created, takes over, or rejoins.
_PATIENCE = 90.0
# Seconds after the end of the primary's key: etcd notices, the standby takes over, the service follows.
_TAKEOVER = 4.0
_PASSWORD = "of-a-drill"  # noqa: S105 - of servers that end with the drill
# Of a node on 127.0.0.1, Patroni expects a certificate for localhost.
_NODES = {"node1": "127.0.0.2", "node2": "127.0.0.3"}
_ETCD_ADDRESS = "127.0.0.1"
# PostgreSQL refuses to run as root.
_UNPRIVILEGED, _UNPRIVILEGED_GROUP = "nobody", "nogroup"
_RUN_AS: dict[str, Any] = {"env": {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}}
if os.geteuid() == 0:
    _RUN_AS |= {"user": _UNPRIVILEGED, "group": _UNPRIVILEGED_GROUP, "extra_groups": []}
_CELL = Cell("primary (Patroni)", "dies", lambda _: None, Bound("500 503", ready="may fail"))


class _Node:
    """Patroni on one node, and the PostgreSQL that it starts."""

    def __init__(self, name: str, folder: Path, etcd: str) -> None:
        self.address = _NODES[name]
        self.port, self._api_port = free_port(), free_port()
        self._folder = folder / name
        self._folder.mkdir()
        _give(self._folder)
        passwords = ("REWIND_PASSWORD", "REPLICATION_PASSWORD", "SUPERUSER_PASSWORD", "API_PASSWORD")
        text = string.Template(_TEMPLATE.read_text(encoding="utf-8")).substitute(
            {"NODE": name, "ADDRESS": self.address, "ETCD": etcd}
            | dict.fromkeys(("DATABASES", "SERVICES"), "127.0.0.0/8")
            | dict.fromkeys(passwords, _PASSWORD)
        )
        here = {
            f"{self.address}:5432": f"{self.address}:{self.port}",
            f"{self.address}:8008": f"{self.address}:{self._api_port}",
            "/etc/patroni/tls": str(folder),
            "/var/lib/postgresql/15/stackmgr": str(self._folder / "data"),
            "/var/lib/postgresql/stackmgr.pgpass": str(self._folder / "pgpass"),
            "/var/run/postgresql": str(self._folder),
        }
        for deployed, replacement in here.items():
            assert deployed in text, deployed
            text = text.replace(deployed, replacement)
        (self._folder / "patroni.yml").write_text(text)

    @property
    def log(self) -> str:
        return (self._folder / "log").read_text(errors="replace")

    def start(self) -> None:
        command = [str(shutil.which("patroni")), str(self._folder / "patroni.yml")]
        with (self._folder / "log").open("ab") as log:
            subprocess.Popen(command, cwd=self._folder, stdout=log, stderr=log, **_RUN_AS)

    def kill(self) -> None:
        """Kill Patroni and PostgreSQL, as a host that fails does."""
        doomed: set[psutil.Process] = set()  # the postmaster is no child of Patroni's
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if str(self._folder) in " ".join(process.cmdline()):
                    doomed |= {process, *process.children(recursive=True)}
        for process in doomed:
            with suppress(psutil.NoSuchProcess):
                process.kill()

        def is_alive(process: psutil.Process) -> bool:
            with suppress(psutil.NoSuchProcess):
                return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
            return False

        eventually(lambda: not any(map(is_alive, doomed)), message="a node cannot be killed")

    def accepts_writes(self) -> bool:
        """Whether this node is the primary, as a load balancer checks."""
        return self.ask("/primary") is not None

    def ask(self, path: str) -> bytes | None:
        """Return the body of Patroni's response, if its status is 200."""
        with suppress(OSError), closing(HTTPConnection(self.address, self._api_port, timeout=2)) as api:
            api.request("GET", path)
            response = api.getresponse()
            return response.read() if response.status == HTTPStatus.OK else None
        return None


class _Cluster:
    """Both nodes; `url` leads a login to whichever is the primary."""

    def __init__(self, folder: Path, etcd: str) -> None:
        self.nodes = [_Node(name, folder, etcd) for name in _NODES]
        self._root_certificate = folder / "ca.pem"
        self._down: _Node | None = None

    def url(self, login: str, database: str = "stackmgr") -> str:
        hosts = ",".join(f"{node.address}:{node.port}" for node in self.nodes)
        return (
            f"postgresql://{login}:{_PASSWORD}@{hosts}/{database}?target_session_attrs=primary"
            f"&sslmode=verify-full&sslrootcert={self._root_certificate}"
        )

    def create(self) -> None:
        """Bootstrap the cluster, and do what the operator does once: roles, passwords, `stackmgr migrate`."""
        first, second = self.nodes
        first.start()
        eventually(first.accepts_writes, _PATIENCE, "the first node does not become the primary")
        second.start()
        self._await_standby()
        superuser = self.url("postgres", "postgres")
        roles = paths.directory("deploy") / "postgresql" / "roles.sql"
        command = [str(_BINARIES / "psql"), "-X", "-q", "-d", superuser, "-f", str(roles)]
        subprocess.run(command, check=True, timeout=_PATIENCE, stdout=subprocess.DEVNULL)
        with psycopg.connect(superuser, autocommit=True) as connection:
            for login in ("stackmgr_operator", "stackmgr_service"):
                connection.execute(f"ALTER ROLE {login} PASSWORD '{_PASSWORD}'".encode())
        for login, *words in (("stackmgr_operator", "migrate"), ("stackmgr_service", "check")):
            environment = {**os.environ, "STACKMGR_DATABASE_URL": self.url(login)}
            command = [sys.executable, "-m", "stackmgr", *words]
            ended = subprocess.run(command, check=False, env=environment, capture_output=True, text=True)
            assert ended.returncode == 0, ended.stdout + ended.stderr

    def fail_over(self, settle: float) -> tuple[float, float]:
        """Kill the primary after *settle* seconds, and return when that was and when the other took over."""
        self.rejoin()
        time.sleep(settle)
        [primary] = [node for node in self.nodes if node.accepts_writes()]
        [other] = [node for node in self.nodes if node is not primary]
        began = time.monotonic()
        primary.kill()
        self._down = primary
        eventually(other.accepts_writes, _PATIENCE, "the standby does not take over")
        return began, time.monotonic()

    def rejoin(self) -> None:
        """Start the node that was killed, and return once it is the synchronous standby."""
        if self._down is not None:
            self._down.start()
            self._down = None
            self._await_standby()

    def _await_standby(self) -> None:
        def is_complete() -> bool:
            members = json.loads(self.nodes[0].ask("/cluster") or '{"members": []}')["members"]
            return sorted(member["role"] for member in members) == ["leader", "sync_standby"]

        eventually(is_complete, _PATIENCE, "there is no synchronous standby")


def _seconds(setting: str) -> int:
    """Return the value of *setting* in the deployed file."""
    return int(re.findall(rf"^ +{setting}: (\d+)$", _TEMPLATE.read_text(encoding="utf-8"), re.MULTILINE)[0])


def run(seed: int, times: int) -> Report:
    """Kill the primary so many *times*.  Raises NoPlace."""
    chance = random.Random(seed)  # noqa: S311 - to be repeatable
    with _cluster() as cluster:
        operator = cluster.url("stackmgr_operator")
        managers = new_managers(operator)
        with running_service(cluster.url("stackmgr_service"), env=ENVIRONMENT) as service:
            workload = Workload(seed, managers, service.port)
            workload.start(_CLIENTS, pause=_PAUSE)
            faults = []
            try:
                for _ in range(times):
                    # At any age of the key, which is renewed every loop_wait seconds.
                    faults.append(cluster.fail_over(_SETTLE + chance.uniform(0, _seconds("loop_wait"))))
                    time.sleep(_SETTLE)
                cluster.rejoin()
            finally:
                workload.stop()
            service.stop()
            logs = [service.log_path.read_text(), *(node.log for node in cluster.nodes)]
        report = judged(_CELL, Evidence(operator, managers, faults, logs), workload, [])
    written = sorted(o.completed for o in workload.operations if o.writes and o.acknowledged)
    for began, ended in faults:
        gap = max(b - a for a, b in itertools.pairwise(written) if a <= ended and b >= began)
        took = f"the standby took over after {ended - began:.1f} s"
        print(f"{took}, no write was acknowledged for {gap:.1f} s", file=sys.stderr, flush=True)
        if gap > _seconds("ttl") + _TAKEOVER:
            report.problems.append(f"no write was acknowledged for {gap:.1f} s")
    return report


@contextmanager
def _cluster() -> Iterator[_Cluster]:
    missing = [name for name in ("patroni", "etcd", "openssl") if shutil.which(name) is None]
    missing += [] if (_BINARIES / "postgres").exists() else [str(_BINARIES)]
    if missing:
        raise NoPlace(
            f"missing: {', '.join(missing)}; install patroni, etcd-server, python3-psycopg2, postgresql-15"
        )
    # Not TMPDIR's: the path of a socket may have no more than 107 bytes.
    with tempfile.TemporaryDirectory(prefix="stackmgr-patroni-", dir="/tmp") as name, ExitStack() as undo:
        folder = Path(name)
        _give(folder)
        _make_certificate(folder)
        cluster = _Cluster(folder, undo.enter_context(_etcd(folder)))
        for node in cluster.nodes:
            undo.callback(node.kill)
        cluster.create()
        yield cluster


def _give(path: Path) -> None:
    if os.geteuid() == 0:
        shutil.chown(path, _UNPRIVILEGED, _UNPRIVILEGED_GROUP)


def _make_certificate(folder: Path) -> None:
    """Make one certificate, its own authority, for etcd and both nodes."""
    addresses = ",".join(f"IP:{address}" for address in (_ETCD_ADDRESS, *_NODES.values()))
    command = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=drill")
    names = ("-addext", f"subjectAltName={addresses}")
    files = ("-keyout", str(folder / "node.key"), "-out", str(folder / "node.pem"))
    subprocess.run([*command, *names, *files], check=True, capture_output=True, timeout=60, **_RUN_AS)
    shutil.copy(folder / "node.pem", folder / "ca.pem")
    (folder / "ca.pem").chmod(0o644)
    (folder / "node.key").chmod(0o600)


@contextmanager
def _etcd(folder: Path) -> Iterator[str]:
    """Run one etcd, and yield its host and port."""
    clients, peers = (f"{_ETCD_ADDRESS}:{free_port()}" for _ in range(2))
    command = [
        *("etcd", "--name=etcd1", f"--data-dir={folder}/etcd", f"--initial-cluster=etcd1=http://{peers}"),
        *(f"--listen-client-urls=https://{clients}", f"--advertise-client-urls=https://{clients}"),
        *(f"--listen-peer-urls=http://{peers}", f"--initial-advertise-peer-urls=http://{peers}"),
        *(f"--cert-file={folder}/node.pem", f"--key-file={folder}/node.key"),
    ]
    port = int(clients.rpartition(":")[2])
    with running(command, folder / "etcd.log", lambda _: listens(port), end=SIGKILL, cwd=folder, **_RUN_AS):
        yield clients
