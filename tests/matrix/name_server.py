"""A name server for one process: a resolver configuration of its own, in a mount namespace.

Nothing of the machine's own configuration is changed.
"""

import os
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from tests.matrix.stage import NoPlace

_PORT = 53
_HEADER_BYTES = 12
_LONGEST_QUERY_BYTES = 512
_A, _IN = 1, 1
_RESPONSE, _NO_SUCH_NAME = 0x8180, 3
_NAME_OF_THE_QUESTION = 0xC000 | _HEADER_BYTES
_TTL_SECONDS = 0
_LOOPBACK = "127.0.0.1"


class NameServer:
    """Responds on a loopback `address` with `addresses` for every name, after `delay` seconds.

    Without an address the name does not exist.  A `silent` server sends nothing.
    """

    def __init__(self) -> None:
        self.address = f"127.53.{os.getpid() >> 8 & 255}.{os.getpid() & 255}"
        self.reset()

    def reset(self) -> None:
        """Respond at once, and correctly."""
        self.addresses: Sequence[str] = (_LOOPBACK,)
        self.delay = 0.0
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
            while received := receiver.recvfrom(_LONGEST_QUERY_BYTES):
                threading.Thread(target=self._respond, args=(receiver, *received), daemon=True).start()

    def _respond(self, sender: socket.socket, query: bytes, client: tuple[str, int]) -> None:
        time.sleep(self.delay)
        if query and not self.silent:
            with suppress(OSError):
                sender.sendto(_response(query, self.addresses), client)


def _response(query: bytes, addresses: Sequence[str]) -> bytes:
    """Return the response to a query for an address; other records do not exist."""
    end = query.index(b"\0", _HEADER_BYTES) + 5  # of the one question: name, type, class
    (kind,) = struct.unpack("!H", query[end - 4 : end - 2])
    found = addresses if kind == _A else ()
    header = struct.pack("!HHHHH", _RESPONSE | (0 if addresses else _NO_SUCH_NAME), 1, len(found), 0, 0)
    records = (
        struct.pack("!HHHIH", _NAME_OF_THE_QUESTION, _A, _IN, _TTL_SECONDS, 4) + socket.inet_aton(address)
        for address in found
    )
    return query[:2] + header + query[_HEADER_BYTES:end] + b"".join(records)


def with_resolver(folder: Path, address: str) -> list[str]:
    """Return the words before a command that make it use the name server at *address*.  Raises NoPlace."""
    if os.geteuid() != 0:
        raise NoPlace("only root can make a mount namespace")
    configuration = folder / "resolv.conf"
    configuration.write_text(f"nameserver {address}\n")
    mounted = 'mount --bind "$0" /etc/resolv.conf && exec "$@"'
    words = ["unshare", "--mount", "sh", "-c", mounted, str(configuration)]
    if subprocess.run([*words, "true"], check=False, capture_output=True).returncode != 0:
        raise NoPlace("a mount namespace cannot be made here")
    return words
