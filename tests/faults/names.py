"""Cells of a name server that fails: of the database's, or the verifier's.

The service has a resolver configuration of its own, in a mount namespace.
"""

import os
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from tests.faults.cell import DOWN, OUTAGE, Cell, Fault
from tests.faults.database import LONG
from tests.faults.stage import NoPlace, Setup, Stage
from tests.faults.tables import end_connections
from tests.faults.verifier import with_unkey

_PORT = 53
_HEADER_BYTES = 12
_LONGEST_QUERY_BYTES = 512
_A, _IN = 1, 1
_RESPONSE = 0x8180
_NAME_OF_THE_QUESTION = 0xC000 | _HEADER_BYTES
_TTL_SECONDS = 0
_LOOPBACK = "127.0.0.1"
# A loopback address on which nothing listens.
_DEAD_ADDRESS = "127.99.0.1"
# Longer than the 5 s after which glibc, by default, repeats a query.
_SILENT_SECONDS = 5.3
# In which a client of the verifier notices that a connection is closed.
_RECONNECT_SECONDS = 0.3
_DATABASE_NAME, _VERIFIER_NAME = "database.faults.test", "verifier.faults.test"


class _NameServer:
    """Responds on a loopback `address` with `addresses` for every name, or is `silent`."""

    def __init__(self) -> None:
        self.address = f"127.53.{os.getpid() >> 8 & 255}.{os.getpid() & 255}"
        self.reset()

    def reset(self) -> None:
        """Respond at once, and correctly."""
        self.addresses: Sequence[str] = (_LOOPBACK,)
        self.silent = False

    def __enter__(self) -> Self:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self._socket.bind((self.address, _PORT))
        except OSError as ex:
            self._socket.close()
            raise NoPlace(f"no name server can run here: {ex.strerror}") from ex
        self.reset()
        threading.Thread(target=self._serve, args=(self._socket,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _serve(self, receiver: socket.socket) -> None:
        with suppress(OSError):
            while True:
                query, client = receiver.recvfrom(_LONGEST_QUERY_BYTES)
                if query and not self.silent:
                    receiver.sendto(_response(query, self.addresses), client)


def _response(query: bytes, addresses: Sequence[str]) -> bytes:
    """Return the response to a query for an address; other records do not exist."""
    end = query.index(b"\0", _HEADER_BYTES) + 5  # of the one question: name, type, class
    (kind,) = struct.unpack("!H", query[end - 4 : end - 2])
    found = addresses if kind == _A else ()
    header = struct.pack("!HHHHH", _RESPONSE, 1, len(found), 0, 0)
    records = (
        struct.pack("!HHHIH", _NAME_OF_THE_QUESTION, _A, _IN, _TTL_SECONDS, 4) + socket.inet_aton(address)
        for address in found
    )
    return query[:2] + header + query[_HEADER_BYTES:end] + b"".join(records)


def _with_resolver(folder: Path, address: str) -> list[str]:
    """Return the words before a command that make it use the name server at *address*.  Raises NoPlace."""
    if os.geteuid() != 0:
        raise NoPlace("only root can make a mount namespace")
    configuration = folder / "resolv.conf"
    configuration.write_text(f"nameserver {address}\n")
    mounted = 'mount --bind "$0" /etc/resolv.conf && exec "$@"'
    words = ["unshare", "--mount", "sh", "-c", mounted, str(configuration)]
    if subprocess.run([*words, "true"], check=False, capture_output=True, timeout=10).returncode != 0:
        raise NoPlace("a mount namespace cannot be made here")
    return words


_NAMES = _NameServer()


@contextmanager
def _of_the_database(setup: Setup) -> Iterator[None]:
    with _NAMES:
        setup.wrapper = _with_resolver(setup.folder, _NAMES.address)
        setup.host = _DATABASE_NAME
        yield


@contextmanager
def _of_the_verifier(setup: Setup) -> Iterator[None]:
    with _NAMES, with_unkey(setup):
        setup.wrapper = _with_resolver(setup.folder, _NAMES.address)
        assert setup.unkey is not None
        setup.environment["STACKMGR_UNKEY_URL"] = f"http://{_VERIFIER_NAME}:{setup.unkey.port}"
        yield


def _names(*addresses: str, silent: bool = False) -> Fault:
    """Return the fault in which the name server responds so, while new connections are needed."""

    @contextmanager
    def fault(stage: Stage) -> Iterator[None]:
        _NAMES.addresses, _NAMES.silent = addresses, silent
        try:
            end_connections(stage)
            if stage.unkey is not None:
                with stage.unkey.not_listening():
                    time.sleep(_RECONNECT_SECONDS)
            yield
        finally:
            _NAMES.reset()

    return fault


_SILENT = _names(silent=True)

CELLS = [
    Cell(
        *("name of the database (one of two is dead)", "lies", _names(_DEAD_ADDRESS, _LOOPBACK), OUTAGE),
        setup=_of_the_database,
        lasts=LONG,
    ),
    Cell("name server", "hangs", _SILENT, DOWN, setup=_of_the_database, lasts=_SILENT_SECONDS),
    Cell(
        "name server (of the verifier)",
        "hangs",
        _SILENT,
        OUTAGE,
        setup=_of_the_verifier,
        lasts=_SILENT_SECONDS,
    ),
]
