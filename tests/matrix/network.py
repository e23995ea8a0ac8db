"""A server behind a network of its own, in namespaces of the kernel's, and packets that get lost on it.

The service and its clients are in one namespace, PostgreSQL in another, and between them is a pair of virtual
interfaces: nothing of the machine's own network is touched.  Packets are lost by being sent to a link address
that no host has.  Neither side hears of it, as where a switch or a cable fails, and the kernel needs no more
for it than the interfaces.  All of it goes when the last process of a namespace ends.
"""

import ctypes
import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

from tests.matrix.cell import Bound, Cell
from tests.matrix.stage import DATABASE_TIMEOUT, NoPlace, Setup, Stage
from tests.support.postgres import FaultyPostgres
from tests.support.waiting import eventually

_CLONE_NEWNET = 0x40000000
_LINE = "line"
# Seconds in which a connection would come to be, or be rejected.
_LISTENING = 0.5
_UNUSED_LINK = "02:00:00:00:00:ff"


class End:
    """A namespace with loopback and one end of a line, which has this *address* and *link* address."""

    def __init__(self, address: str, link: str) -> None:
        self.address = address
        self.link = link
        # It ends when its input does, which is at the latest when this process is gone.
        command = ("unshare", "--net", "sh", "-c", "echo; exec cat")
        pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
        self._holder = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=nowhere)
        self.pid = self._holder.pid
        self._file = f"/proc/{self.pid}/ns/net"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._holder.communicate()

    def await_it(self) -> None:
        assert self._holder.stdout is not None
        if not self._holder.stdout.readline():
            raise NoPlace("a network namespace cannot be made here")

    def ip(self, *words: str) -> None:
        """Run the program of this name there.  Raises NoPlace."""
        command = ("nsenter", f"--net={self._file}", "ip", *words)
        ended = subprocess.run(command, check=False, capture_output=True, text=True)
        if ended.returncode != 0:
            raise NoPlace(f"a network cannot be made here: {ended.stderr.strip()}")

    def send_to(self, address: str, link: str) -> None:
        """Send what is for *address* to *link*, without a request to the other side."""
        self.ip("neighbour", "replace", address, "lladdr", link, "dev", _LINE, "nud", "permanent")

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


class Network:
    """The two ends, and the line between them."""

    def __init__(self, near: End, far: End) -> None:
        self.near = near
        self.far = far

    def lay(self) -> None:
        """Connect the two ends.  Raises NoPlace where that is not allowed."""
        for end in (self.near, self.far):
            end.await_it()
            end.ip("link", "set", "lo", "up")
        peer = ("peer", "name", _LINE, "address", self.far.link, "netns", str(self.far.pid))
        self.near.ip("link", "add", "name", _LINE, "address", self.near.link, "type", "veth", *peer)
        for end in (self.near, self.far):
            end.ip("address", "add", f"{end.address}/30", "dev", _LINE)
            end.ip("link", "set", _LINE, "up")
        self.carry()

    def carry(self) -> None:
        self.near.send_to(self.far.address, self.far.link)
        self.far.send_to(self.near.address, self.near.link)

    def lose(self) -> None:
        """Lose, from now on, every packet in both directions."""
        self.near.send_to(self.far.address, _UNUSED_LINK)
        self.far.send_to(self.near.address, _UNUSED_LINK)


class DistantPostgres(FaultyPostgres):
    """A server at the far end of *network*, reached from the near one."""

    def __init__(self, folder: Path, network: Network) -> None:
        super().__init__(folder)
        self.network = network
        self.network_address = (network.far.address, 5432)

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"listen_addresses": self.network.far.address}

    def make_cluster(self, initdb: Path) -> None:
        super().make_cluster(initdb)
        with (self.folder / "pg_hba.conf").open("a") as rules:
            rules.write(f"host all all {self.network.near.address}/32 trust\n")

    def start(self) -> None:
        with self.network.far.entered():
            super().start()


@contextmanager
def distant_server(setup: Setup) -> Iterator[None]:
    """Go to one end of a network and run a server at the other.  Raises NoPlace where there can be none."""
    if os.geteuid() != 0:
        raise NoPlace("only root can make a network namespace")
    with ExitStack() as undo:
        try:
            near = undo.enter_context(End("192.0.2.1", "02:00:00:00:00:01"))
            far = undo.enter_context(End("192.0.2.2", "02:00:00:00:00:02"))
            network = Network(near, far)
            network.lay()
        except FileNotFoundError as ex:
            raise NoPlace(f"{ex.filename} is missing, with which namespaces are made") from ex
        undo.enter_context(near.entered())
        folder = undo.enter_context(tempfile.TemporaryDirectory(prefix="stackmgr-matrix-"))
        server = undo.enter_context(DistantPostgres(Path(folder) / "data", network))
        server.prepare()
        setup.use(server)
        yield


@contextmanager
def lose_packets(stage: Stage) -> Iterator[None]:
    """Lose every packet between the service and its database, for longer than anybody waits."""
    server = stage.server
    assert isinstance(server, DistantPostgres)
    server.network.lose()
    assert server.network_address is not None
    try:
        assert _is_silent(server.network_address)
        yield
    finally:
        server.network.carry()
    eventually(server.accepts, 60)


def _is_silent(address: tuple[str, int]) -> bool:
    """Whether neither a response nor an error comes from there."""
    try:
        socket.create_connection(address, timeout=_LISTENING).close()
    except TimeoutError:
        return True
    return False


CELLS = [
    Cell(
        *("packets to the database", "dies", lose_packets, Bound("500 503", ready="fails")),
        lasts=DATABASE_TIMEOUT * 1.5,
        setup=distant_server,
        short=True,
    )
]
