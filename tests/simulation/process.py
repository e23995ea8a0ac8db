"""Worker processes: the real loop, a simulated gunicorn, and the application, which does what a path says."""

from collections.abc import Iterable
from sys import byteorder
from typing import Any

from greenlet import getcurrent
from gunicorn.config import Config

from stackmgr.admission import ADMISSION
from stackmgr.scheduler import Signal, end_turn
from stackmgr.server import client, clients, loop, queue
from stackmgr.server.worker import Worker
from stackmgr.threads import call_in_thread
from tests.simulation import kernel as kernels
from tests.simulation.clients import OVERLOAD, content_of
from tests.simulation.names import Names
from tests.simulation.sockets import Backlog, Listener
from tests.simulation.web_invariants import WatchedClients, WatchedLoop, WatchedQueue
from tests.simulation.world import World

PORTS = 8000, 8002, 8001  # the last is the operator's
_config = Config()

# Small limits, in place of those of production, by what a plan calls them.
_LIMITS: dict[str, tuple[tuple[Any, str], ...]] = {
    "linger": ((loop, "STOP_LINGER"),),
    "waiting": ((queue, "LIMIT"),),
    "turn": ((loop, "READ_SECONDS"), (loop, "START_SECONDS"), (loop, "REJECT_SECONDS")),
    "read deadline": ((client, "RECEIVE_SECONDS"),),
    "write deadline": ((client, "SEND_SECONDS"),),
    "write progress": ((client, "SEND_PROGRESS"),),
    "drain": ((client, "DRAIN_SECONDS"),),
    "drain limit": ((client, "DRAIN_LIMIT"),),
    "buffers": ((clients, "BUFFER_BUDGET"),),
    "remembered": ((queue, "_REMEMBERED"),),
    "backoff": ((clients, "SHARED_BELOW"),),
}  # fmt: skip


def names(world: World, kernel: kernels.Kernel) -> Names:
    def ioctl(number: int, _: int, __: bytes) -> bytes:
        return len(kernel.file(number).stream.received).to_bytes(4, byteorder)

    found: dict[tuple[Any, str], Any] = {
        (loop, "os"): kernel.os(getppid=lambda: 1),
        (queue, "randint"): world.random.randint, (queue, "randrange"): world.random.randrange,
        (client, "ioctl"): ioctl,
        (loop, "RequestQueue"): lambda *given: WatchedQueue(world, *given),
        (loop, "Clients"): lambda *given: WatchedClients(world, kernel, *given),
    }  # fmt: skip
    for module in (loop, client, clients):
        found[module, "monotonic"] = world.monotonic
    for limit, value in world.plan["limits"].items():
        found.update(dict.fromkeys(_LIMITS[limit], value))
    return found


class Process:
    """One worker process, from its start to its exit; it has what a loop needs of gunicorn's worker."""

    must_exit = must_reopen = False
    count_request = Worker.count_request

    def __init__(self, world: World, kernel: kernels.Kernel, backlogs: Iterable[Backlog]) -> None:
        plan = self.plan = world.plan
        self.world = world
        self.wsgi = Application(self)
        self.heartbeat, self.stopped_at = world.now, None
        self.has_ended = False
        for name in ("threads", "keepalive", "worker_connections", "graceful_timeout", "workers"):
            _config.set(name, plan[name])
        self.cfg, self.log = _config, self
        self.ppid, self.nr, self.alive = 1, 0, True
        self.max_requests = plan["max requests"] or 1 << 60
        self.admin_port, self.queue_seconds = PORTS[-1], plan["queue seconds"]
        self.sockets = [
            Listener(kernel, backlog, port) for backlog, port in zip(backlogs, PORTS, strict=True)
        ]
        self.loop = WatchedLoop(world, self)
        self.main = world.start("main", self._run)

    def _run(self) -> None:
        self.main.only_waits_in = getcurrent()
        self.loop.scheduler.run(self.loop.turn, self.loop.idle_seconds)
        if self.loop.managers.open and self.world.now < self.loop.stops_at:
            self.world.fail("a stopping worker finishes what has arrived", "it ends early")
        self._exit()

    def stop(self) -> None:
        if self.alive and not self.has_ended:
            self.world.note("SIGTERM")
            self.alive, self.stopped_at = False, self.world.now

    def _exit(self) -> None:
        """End: the kernel closes what is open."""
        self.has_ended = True
        self.world.note("exits")
        left = [*self.loop.managers.open, *self.loop.operators.open]
        for conn in left:
            conn.sock.stream.client.excuse = "the worker's graceful time-out"
        for file in (*(conn.sock for conn in left), *self.sockets):
            file.close()

    # What gunicorn's worker has.

    def notify(self) -> None:
        self.heartbeat = self.world.now

    def error(self, text: str, *values: object) -> None:
        if "DeliberateError" not in values:
            self.world.fail("no exception is unexpected", text % values)

    def info(self, *_: object, **__: object) -> None:
        """Log nothing."""

    warning = info


class DeliberateError(Exception):
    """What `/raise` raises."""


def manager_of(environ: dict[str, Any]) -> str:
    """Return whose the key of a request is: two keys are of one manager."""
    return f"manager{int(environ['HTTP_AUTHORIZATION'][-1]) // 2}"


class Application:
    """Requests are `/KIND/NUMBER`; a response names its request in `X-Request-Id` and in its body."""

    def __init__(self, process: Process) -> None:
        self._process, self._world = process, process.world
        threads = process.plan["threads"]
        # In all, of a manager, of unverified keys.
        self._threads, self._shares = threads, (threads - threads // 4, max(1, threads // 4))
        self._running: list[Any] = []  # the places of those that the queue has admitted

    def __call__(self, environ: dict[str, Any], start_response: Any) -> list[bytes]:
        getcurrent().request = name = environ["HTTP_X_REQUEST_ID"]  # type: ignore[attr-defined]
        _, kind, number = environ["PATH_INFO"].split("/")
        self._world.note("starts", name)
        place, fields = environ[ADMISSION], [("X-Request-Id", name)]
        if place.retry_after:
            self._world.touched[name].append(OVERLOAD)
            start_response("503 Service Unavailable", [*fields, ("Retry-After", "1")])
            return [b""]
        body = environ["wsgi.input"].read()
        if body != content_of(name, len(body)) or len(body) != int(environ["CONTENT_LENGTH"]):
            self._world.fail("no request has another's body", name)
        if environ["SERVER_PORT"] == str(PORTS[-1]):
            self._work(kind, int(number), lambda: None)
        else:
            self._run(kind, int(number), place, manager_of(environ))
        start_response("200 OK", fields)
        return [content_of(name, int(number) if kind == "fast" else 10)]

    def _run(self, kind: str, number: int, place: Any, manager_id: str) -> None:
        self._running.append(place)
        same = sum(each.group == place.group for each in self._running)
        if len(self._running) > self._threads or same > self._shares[not place.group]:
            self._world.fail("nobody has more than his share", f"{same} of {len(self._running)}")
        try:
            self._work(kind, number, lambda: place.accept(manager_id))
        finally:
            self._running.remove(place)

    def _work(self, kind: str, number: int, accept: Any) -> None:
        if kind != "late":  # its key is verified slowly
            accept()
        match kind:
            case "sleep" | "late":
                Signal().wait(number / 1000)
            case "thread":
                call_in_thread(lambda: self._block(number / 1000))
            case "spin":
                self._end_turns(number / 1000)
            case "raise":
                raise DeliberateError
        if kind == "late":
            accept()

    def _block(self, seconds: float) -> None:
        if self._world.current is not self._process.main:  # as it is if there are no more threads
            self._world.block(seconds)

    def _end_turns(self, seconds: float) -> None:
        turn = 0
        for _ in range(3):
            self._world.now += seconds
            end_turn()
            before, turn = turn, self._process.loop.turns
            if turn == before:
                self._world.fail("whoever ends its turn lets what is ready run", "it does not")
