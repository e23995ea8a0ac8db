"""A stretch of network that can fail or delay: a TCP proxy on loopback, to a server.

As a process, it delays every read of a database on another host.
"""

import re
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.support.processes import serving_module

_CUT_WITHIN = 5.0
RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


def seconds(text: str) -> float:
    """Return the seconds that `500us`, `1ms` or `2s` stands for.  Raises ValueError."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(us|ms|s)", text)
    if match is None:
        raise ValueError(text)
    return float(match[1]) * _UNITS[match[2]]


@contextmanager
def delayed(url: str, delay: float) -> Iterator[tuple[str, int]]:
    given = conninfo_to_dict(url)
    host, port = str(given.get("host", "127.0.0.1")), given.get("port", "5432")
    target = f"{host}/.s.PGSQL.{port}" if host.startswith("/") else f"{host}:{port}"
    with serving_module(__name__, target, delay) as (port, pid):
        yield make_conninfo(url, host="127.0.0.1", port=port), pid


class Proxy(AbstractContextManager["Proxy"]):
    """Forwards from 127.0.0.1:`port` to *target*, a path or an address, `delay` seconds later."""

    def __init__(self, target: str, delay: float = 0.0) -> None:
        self.target = target
        self.delay = delay
        self._forwards, self._backwards = threading.Event(), threading.Event()
        self.release()
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads = [self._start(self._accept)]

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.release()
        self.cut()
        for thread in self._threads:
            thread.join(5)

    @property
    def connections(self) -> int:
        return len(self._open) // 2

    def hold(self, *, only_backwards: bool = False) -> None:
        """Let nothing through any more, without a word to either side, or nothing that comes back."""
        self._backwards.clear()
        if not only_backwards:
            self._forwards.clear()

    def release(self) -> None:
        self._forwards.set()
        self._backwards.set()

    def cut(self) -> None:
        doomed = set(self._open)
        for end in doomed:
            with suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
                end.shutdown(socket.SHUT_RD)
        deadline = time.monotonic() + _CUT_WITHIN
        while doomed & self._open and time.monotonic() < deadline:
            time.sleep(0.001)

    def _start(self, work: Callable[..., None], *arguments: Any) -> threading.Thread:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        thread.start()
        return thread

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._threads.append(self._start(self._relay, client))

    def _relay(self, client: socket.socket) -> None:
        host, _, port = self.target.rpartition(":")
        is_path = self.target.startswith("/")
        server = socket.socket(socket.AF_UNIX if is_path else socket.AF_INET)
        with client, server:
            try:
                server.connect(self.target if is_path else (host, int(port)))
            except OSError:
                return
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._open |= {client, server}
            backwards = self._start(self._pump, server, client, self._backwards)
            self._pump(client, server, self._forwards)
            backwards.join()
        self._open -= {client, server}

    def _pump(self, source: socket.socket, sink: socket.socket, flowing: threading.Event) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if self.delay:
                    time.sleep(self.delay)
                flowing.wait()
                sink.sendall(data)
        # One way ended ends the other: PostgreSQL has no half-closed connections.
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RD)


def main() -> None:
    target, delay = sys.argv[1:]
    with Proxy(target, float(delay)) as proxy:
        print(proxy.port, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
