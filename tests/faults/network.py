"""Cells of the network to the database.

Most fail the stage's proxy.  To lose packets, the service and its clients are in one network namespace,
PostgreSQL in another, and between them is a pair of virtual interfaces.  Packets are lost by being sent to a
link address that no host has: neither side hears of it, as where a switch or a cable fails.
"""

import ctypes
import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from tests.faults.cell import DOWN, OUTAGE, Bound, Cell
from tests.faults.database import LONG
from tests.faults.stage import NoPlace, Stage
from tests.support.postgres import FaultyPostgres
from tests.support.waiting import eventually

_CLONE_NEWNET = 0x40000000
_LINE = "line"
# Seconds in which a connection would come to be, or be rejected.
_LISTENING = 0.5
_DELAY_SECONDS = 0.1
_UNUSED_LINK = "02:00:00:00:00:ff"


class _End:
    """A namespace with loopback and one end of a line, which has this *address* and *link* address."""

    def __init__(self, address: str, link: str, undo: ExitStack) -> None:
        self.address, self.link = address, link
        # It ends when its input does, which is at the latest when this process is gone.
        command = ("unshare", "--net", "sh", "-c", "echo; exec cat")
        pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
        holder = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=nowhere)
        undo.callback(holder.communicate, timeout=10)
        self.pid = holder.pid
        self._file = f"/proc/{self.pid}/ns/net"
        if holder.stdout is None or not holder.stdout.readline():
            raise NoPlace("a network namespace cannot be made here")
        self.ip("link", "set", "lo", "up")

    def ip(self, *words: str) -> None:
        """Run the program of this name there.  Raises NoPlace."""
        command = ("nsenter", f"--net={self._file}", "ip", *words)
        ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=10)
        if ended.returncode != 0:
            raise NoPlace(f"a network cannot be made here: {ended.stderr.strip()}")

    def send(self, other: "_End", link: str) -> None:
        """Send what is for the *other* end to *link*, without a request to it."""
        self.ip("neighbour", "replace", other.address, "lladdr", link, "dev", _LINE, "nud", "permanent")

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Be there, with this thread and the threads and processes that it starts meanwhile."""
        # /proc/self is the main thread, which may be elsewhere.
        with Path("/proc/thread-self/ns/net").open("rb") as before, Path(self._file).open("rb") as after:
            _enter(after.fileno())
            try:
                yield
            finally:
                _enter(before.fileno())


def _enter(namespace: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if library.setns(namespace, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


class _DistantPostgres(FaultyPostgres):
    """A server at the *far* end of a line, reached from the *near* one."""

    def __init__(self, folder: Path, near: _End, far: _End) -> None:
        super().__init__(folder)
        self._ends = near, far
        self.network_address = (far.address, 5432)
        peer = ("peer", "name", _LINE, "address", far.link, "netns", str(far.pid))
        near.ip("link", "add", "name", _LINE, "address", near.link, "type", "veth", *peer)
        for end in self._ends:
            end.ip("address", "add", f"{end.address}/30", "dev", _LINE)
            end.ip("link", "set", _LINE, "up")
        self.carry()

    def carry(self, *, lost: bool = False) -> None:
        """Carry every packet from now on, or lose every one, in both directions."""
        near, far = self._ends
        near.send(far, _UNUSED_LINK if lost else far.link)
        far.send(near, _UNUSED_LINK if lost else near.link)

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"listen_addresses": self._ends[1].address}

    def make_cluster(self, initdb: Path) -> None:
        super().make_cluster(initdb)
        with (self.folder / "pg_hba.conf").open("a") as rules:
            rules.write(f"host all all {self._ends[0].address}/32 trust\n")

    def start(self) -> None:
        with self._ends[1].entered():
            super().start()


@contextmanager
def _with_distant_server(stage: Stage) -> Iterator[None]:
    """Go to one end of a line and run a server at the other.  Raises NoPlace where there can be none."""
    if os.geteuid() != 0:
        raise NoPlace("only root can make a network namespace")
    with ExitStack() as undo:
        try:
            near = _End("192.0.2.1", "02:00:00:00:00:01", undo)
            far = _End("192.0.2.2", "02:00:00:00:00:02", undo)
            folder = undo.enter_context(tempfile.TemporaryDirectory(prefix="stackmgr-faults-"))
            server = _DistantPostgres(Path(folder) / "data", near, far)
        except FileNotFoundError as ex:
            raise NoPlace(f"{ex.filename} is missing, with which namespaces are made") from ex
        undo.enter_context(near.entered())
        undo.enter_context(server)
        server.prepare()
        stage.use(server)
        yield


@contextmanager
def _lose_packets(stage: Stage) -> Iterator[None]:
    """Lose every packet between the service and its database, for longer than anybody waits."""
    server = stage.server
    assert isinstance(server, _DistantPostgres)
    assert server.network_address is not None
    server.carry(lost=True)
    try:
        with suppress(TimeoutError):  # neither a response nor an error comes from there
            socket.create_connection(server.network_address, timeout=_LISTENING).close()
            raise AssertionError("packets are not lost")
        yield
    finally:
        server.carry()
    eventually(server.accepts, 60)


@contextmanager
def _hold(stage: Stage, *, only_backwards: bool = False, cuts: bool = False) -> Iterator[None]:
    """Let nothing through, or no response; connections may be *cut* before."""
    stage.proxy.hold(only_backwards=only_backwards)
    if cuts:
        stage.proxy.cut()
    try:
        yield
    finally:
        stage.proxy.release()


@contextmanager
def _delay(stage: Stage) -> Iterator[None]:
    stage.proxy.delay = _DELAY_SECONDS
    try:
        yield
    finally:
        stage.proxy.delay = 0.0


_NETWORK = "network to the database"
# A new connection needs several round trips, which the first requests do not wait for.
_SLOW = Bound("503", ready="may fail")

CELLS = [
    Cell(_NETWORK, "hangs", _hold, DOWN, lasts=LONG, mixed=True),
    Cell(_NETWORK, "dies", lambda stage: stage.proxy.cut(), OUTAGE, lasts=0.0, mixed=True),
    Cell(_NETWORK, "is slow", _delay, _SLOW, lasts=LONG),
    Cell(
        *(f"{_NETWORK} (responses lost)", "lies", partial(_hold, only_backwards=True), DOWN),
        lasts=LONG,
        short=True,
    ),
    Cell(f"{_NETWORK} (accepts, is silent)", "lies", partial(_hold, cuts=True), DOWN, lasts=LONG),
    Cell(
        *("packets to the database", "dies", _lose_packets, DOWN),
        setup=_with_distant_server,
        lasts=LONG,
        short=True,
    ),
]
