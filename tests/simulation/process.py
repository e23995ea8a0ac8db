"""A worker process of the simulation: the real worker class, with simulated descriptors, threads and signals.

The simulated master starts workers, stops them, reloads, and kills one whose heartbeat has stopped.
"""

import gc
from collections.abc import Callable
from sys import byteorder
from types import SimpleNamespace
from typing import Any

from greenlet import getcurrent
from gunicorn.config import Config

from stackmgr.server import body, connection, connections, listeners, loop, protocol, queue, worker
from stackmgr.server.protocol import DRAINING, IDLE, READING, WRITING
from tests.simulation import kernel as kernels
from tests.simulation.names import Names
from tests.simulation.sockets import Backlog, Listener, Network
from tests.simulation.world import World

PORTS = 8000, 8002, 8001  # the last is the operator's
KILL_SECONDS = 6.0  # without a heartbeat: gunicorn's `timeout`

_config = Config()

# Small limits, in place of those of production, by what a plan calls them.
_LIMITS: dict[str, tuple[tuple[Any, str], ...]] = {
    "linger": ((loop, "STOP_LINGER"),),
    "waiting": ((queue, "LIMIT"),),
    "turn": ((loop, "PARSE_SECONDS"), (loop, "STEP_SECONDS"), (connections, "STEP_SECONDS")),
    "read deadline": ((IDLE, "seconds"), (READING, "seconds")),
    "write deadline": ((WRITING, "seconds"),),
    "write progress": ((connection, "WRITE_PROGRESS"),),
    "drain": ((DRAINING, "seconds"),),
    "drain limit": ((protocol, "DRAIN_LIMIT"),),
    "buffers": ((connections, "BUFFER_BUDGET"),),
    "body": ((protocol, "BODY_LIMIT_BYTES"), (body, "BODY_LIMIT_BYTES")),
    "remembered": ((queue, "_REMEMBERED"),),
    "backoff": ((listeners, "ACCEPT_BACKOFF_BELOW"),),
}  # fmt: skip


class _Pipe(kernels.EventFd):
    """A pipe, of whose bytes only the number matters."""


class _Os(kernels.Os):
    def getppid(self) -> int:
        return 1

    def write(self, number: int, data: bytes) -> int:
        self.eventfd_write(number, len(data))
        return len(data)

    def read(self, number: int, _: int) -> bytes:
        return bytes(self.eventfd_read(number))


def names(world: World, kernel: kernels.Kernel, limits: dict[str, Any]) -> Names:
    """Return the simulated names of the server's modules."""

    def ioctl(number: int, _: int, __: bytes) -> bytes:
        return int(kernel.file(number).unread()).to_bytes(4, byteorder)  # type: ignore[attr-defined]

    found: dict[tuple[Any, str], Any] = {
        (loop, "os"): _Os(kernel), (loop, "randint"): world.random.randint,
        (worker, "gc"): SimpleNamespace(freeze=gc.isenabled),
        (connection, "ioctl"): ioctl,
    }  # fmt: skip
    for module in (loop, connections, listeners):
        found[module, "monotonic"] = world.monotonic
    for limit, value in limits.items():
        found.update(dict.fromkeys(_LIMITS[limit], value))
    return found


class _Log:
    """gunicorn's log: no error is expected but those that the application has raised."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.rejections = 0  # that have been reported

    def error(self, text: str, *values: object) -> None:
        if "DeliberateError" not in values and not ("MemoryError" in values and self._world.faults):
            self._world.fail("no exception is unexpected", text % values if values else text)

    def exception(self, text: str, *values: object) -> None:
        self.error(text, *values)

    def warning(self, text: str, *values: Any, **_: object) -> None:
        if "503" in text:
            self.rejections += values[1]

    info = debug = warning


class Process:
    """One worker process, from its start to its exit."""

    def __init__(self, world: World, network: Network, wsgi: Any, backlogs: tuple[Backlog, ...]) -> None:
        self.world, self.network = world, network
        self.heartbeat = self.turned_at = world.now
        self.has_ended = False
        self.stopped_at: float | None = None
        plan = world.plan
        self.pipe = _Pipe(network.kernel, 0)
        self.sockets = [
            Listener(network, backlog, port) for backlog, port in zip(backlogs, PORTS, strict=True)
        ]
        made = self.worker = worker.Worker.__new__(worker.Worker)
        made.cfg = _configured(plan)
        made.ppid, made.nr, made.booted, made.alive = 1, 0, True, True
        made.max_requests = plan["max requests"] or 1 << 60
        made.timeout, made.sockets, made.log = KILL_SECONDS, self.sockets, _Log(world)
        made.tmp = SimpleNamespace(notify=self._notify)
        made.PIPE = (self.pipe.number, self.pipe.number)
        made.wsgi = wsgi
        made.queue_seconds, made.admin_port = plan["queue seconds"], PORTS[-1]

    def start(self, prepared: Callable[["Process"], None]) -> None:
        """Start the main thread; call *prepared* once the worker has its parts."""

        def run() -> None:
            made = self.worker.loop = loop.Loop(self.worker)
            made._begin_stop, made.turn = self._begin_stop, self._turn
            prepared(self)
            if not self.world.plan["hangs"]:
                self.main.only_waits_in = getcurrent()
            self.worker.run()
            if made.managers.open and self.world.now < made.stops_at:
                self.world.fail("a stopping worker finishes what has arrived", "it ends early")
            self.exit()

        self.main = self.world.start("main", run)

    def _notify(self) -> None:
        self.heartbeat = self.world.now

    def stop(self) -> None:
        """Deliver SIGTERM."""
        if self.has_ended or self.stopped_at is not None:
            return
        self.world.note("SIGTERM")
        self.stopped_at = self.world.now
        self.worker.alive = False
        self.pipe.count += 1
        self.pipe.changed()

    def _turn(self) -> bool:
        self.worker.wsgi.turns += 1
        goes_on = loop.Loop.turn(self.worker.loop)
        self.turned_at = self.world.now
        return goes_on

    def _begin_stop(self, now: float) -> None:
        self.stopped_at = self.stopped_at or self.world.now
        loop.Loop._begin_stop(self.worker.loop, now)

    def exit(self) -> None:
        """End: the kernel closes what is open, and no thread of the process goes on."""
        self.has_ended = True
        made = self.worker.loop
        self.world.note("exits", len(made.managers.open))
        if self.main is not self.world.current:
            self.world.halt(self.main)
        for one in (made.managers, made.operators):
            for conn in sorted(one.open, key=lambda conn: conn.fd):
                conn.sock.remote.holder.excuse = "the worker's graceful time-out"
                if conn.sock.number >= 0:
                    conn.sock.exit()
        for listener in self.sockets:
            if listener.number >= 0:
                listener.exit()


def _configured(plan: dict[str, Any]) -> Config:
    for name in ("threads", "keepalive", "worker_connections", "graceful_timeout"):
        _config.set(name, plan[name])
    return _config
