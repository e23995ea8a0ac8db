"""A stretch of network that can fail: a TCP proxy on loopback, to a server's unix socket."""

import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

_CUT_WITHIN = 5.0
RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Proxy:
    """Forwards what connects to 127.0.0.1:`port` to the unix socket *target*, `delay` seconds later."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.delay = 0.0
        self._forwards, self._backwards = threading.Event(), threading.Event()
        self.release()
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads = [self._start(self._accept)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.release()
        self.cut()
        for thread in self._threads:
            thread.join(5)

    @property
    def connections(self) -> int:
        """How many connections are open."""
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
        """Reset every connection, on both sides; new ones are forwarded as before."""
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
        server = socket.socket(socket.AF_UNIX)
        with client, server:
            try:
                server.connect(self.target)
            except OSError:
                return
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
        # One way ended ends the other: PostgreSQL knows no half-closed connections.
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RD)
