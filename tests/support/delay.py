"""A database on another host: a TCP proxy, as a process, that delivers every byte later, each way."""

import os
import re
import select
import socket
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.support.processes import serving_module

_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_AT_ONCE = 65536


def seconds(text: str) -> float:
    """Return the seconds that `500us`, `1ms` or `2s` stands for.  Raises ValueError."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(us|ms|s)", text)
    if match is None:
        raise ValueError(text)
    return float(match[1]) * _UNITS[match[2]]


@contextmanager
def delayed(url: str, delay: float) -> Iterator[tuple[str, int]]:
    """Yield a connection string for the server of *url*, *delay* seconds away, and the pid of the proxy."""
    given = conninfo_to_dict(url)
    host, port = str(given.get("host", "127.0.0.1")), given.get("port", "5432")
    target = f"{host}/.s.PGSQL.{port}" if host.startswith("/") else f"{host}:{port}"
    with serving_module(__name__, target, delay) as (port, pid):
        yield make_conninfo(url, host="127.0.0.1", port=port), pid


class _Line:
    """What is on its way, in the order in which it is due."""

    def __init__(self, target: str, delay: float) -> None:
        self._target = target
        self._delay = delay
        self._epoll = select.epoll()
        self._sinks: dict[int, tuple[socket.socket, socket.socket]] = {}
        self._underway: deque[tuple[float, socket.socket, bytes]] = deque()

    def run(self, listener: socket.socket) -> None:
        """Forward connections until standard input ends."""
        for fd in (listener.fileno(), sys.stdin.fileno()):
            self._epoll.register(fd, select.EPOLLIN)
        while True:
            # epoll counts in whole milliseconds, select does not.
            wait = max(0.0, self._underway[0][0] - time.monotonic()) if self._underway else None
            select.select([self._epoll], [], [], wait)
            for fd, _ in self._epoll.poll(0):
                if fd == sys.stdin.fileno():
                    return
                if fd == listener.fileno():
                    self._connect(listener.accept()[0])
                else:
                    self._receive(fd)
            self._deliver()

    def _connect(self, client: socket.socket) -> None:
        if self._target.startswith("/"):
            server = socket.socket(socket.AF_UNIX)
            server.connect(self._target)
        else:
            host, _, port = self._target.rpartition(":")
            server = socket.create_connection((host, int(port)))
        for source, sink in ((client, server), (server, client)):
            if source.family == socket.AF_INET:
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sinks[source.fileno()] = (source, sink)
            self._epoll.register(source, select.EPOLLIN)

    def _receive(self, fd: int) -> None:
        source, sink = self._sinks[fd]
        try:
            data = source.recv(_AT_ONCE)
        except OSError:
            data = b""
        if not data:
            self._epoll.unregister(fd)
            del self._sinks[fd]
        self._underway.append((time.monotonic() + self._delay, sink, data))

    def _deliver(self) -> None:
        while self._underway and self._underway[0][0] <= time.monotonic():
            _, sink, data = self._underway.popleft()
            with suppress(OSError):
                if data:
                    sink.sendall(data)
                else:
                    sink.shutdown(socket.SHUT_RDWR)  # of which this proxy then reads the end


def main() -> None:
    """Print the port, and forward."""
    target, delay = sys.argv[1:]
    sys.stdin.readline()
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        print(listener.getsockname()[1], flush=True)
        _Line(target, float(delay)).run(listener)
    os._exit(0)  # whatever is still underway


if __name__ == "__main__":
    main()
