"""A stretch of network that can fail: a TCP proxy on loopback, to a server's unix socket."""

import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Self

_CUT_WITHIN = 5.0
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Proxy:
    """Forwards what connects to 127.0.0.1:`port` to *target*, the path of a unix socket, which may change.

    `hold` lets nothing through any more, without a word to either side, as a partition does; `cut` resets
    every connection; `delay` is how many seconds everything takes from then on.
    """

    def __init__(self, target: str) -> None:
        self.target = target
        self.delay = 0.0
        self._flowing = threading.Event()
        self._flowing.set()
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads = [self._start(self._accept)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._flowing.set()
        self.cut()
        for thread in self._threads:
            thread.join(5)

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._open) // 2

    def hold(self) -> None:
        self._flowing.clear()

    def release(self) -> None:
        self._flowing.set()

    def cut(self) -> None:
        """Reset every connection, on both sides; new ones are forwarded as before."""
        doomed = set(self._open)
        for end in doomed:
            with suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
                end.shutdown(socket.SHUT_RD)
        deadline = time.monotonic() + _CUT_WITHIN
        while doomed & self._open and time.monotonic() < deadline:
            time.sleep(0.001)

    def _start(self, work: Callable[..., None], *arguments: socket.socket) -> threading.Thread:
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
        server = socket.socket(socket.AF_UNIX)
        with client, server:
            try:
                server.connect(self.target)
            except OSError:
                return
            self._open |= {client, server}
            backwards = self._start(self._pump, server, client)
            self._pump(client, server)
            backwards.join()
        self._open -= {client, server}

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if self.delay:
                    time.sleep(self.delay)
                self._flowing.wait()
                sink.sendall(data)
        # One way ended ends the other: PostgreSQL knows no half-closed connections.
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RD)
