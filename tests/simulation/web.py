"""The scenario of the HTTP server: clients of every kind, workers, and their master."""

from contextlib import ExitStack
from random import Random

from tests.simulation.clients import Client, Manners, Request, content_of
from tests.simulation.kernel import Kernel
from tests.simulation.names import of_production, replaced
from tests.simulation.process import Process, names
from tests.simulation.sockets import Backlog
from tests.simulation.world import Plan, World, chosen_faults

name = "web"

_FAULTS = {"preemption": 0.3, "stall": 0.002, "short": 0.5, "no more threads": 0.3}
_KINDS = (
    "pipelining", "slow sender", "slow reader", "no reader", "leaving", "resetting", "half-closing", "silent",
)  # fmt: skip
_WORK = (
    "fast/10", "fast/700", "fast/6000", "sleep/30", "sleep/300", "late/30", "raise/0", "thread/40", "spin/4",
)  # fmt: skip
_SLOW_WORK = "sleep/300", "sleep/700", "late/300", "fast/6000", "thread/40"
_SECONDS = 90.0
_HEARTBEAT_SECONDS = 6.0  # gunicorn's `timeout`


def plan(random: Random) -> Plan:
    choice = random.choice
    crowd = random.random() < 0.25  # of requests that are slow, most of one key
    return {
        "clients": random.randint(6, 10) if crowd else random.randint(2, 8),
        "operators": choice((0, 0, 1, 2)),
        "kinds": ["quick", *random.sample(_KINDS, random.randint(1, 4))],
        "work": random.sample(_SLOW_WORK if crowd else _WORK, random.randint(1, 3)),
        "keys": choice((1, 2)) if crowd else random.randint(1, 3),
        "seconds": 0.05 if crowd else choice((0.05, 0.5, 2.0)),  # in which the clients start
        "workers": choice((1, 2)),
        "threads": 4 if crowd else choice((1, 2, 4)),
        "keepalive": choice((0, 1, 2)),
        "worker_connections": choice((3, 6, 30, 30)),
        "descriptors": choice((0, 0, 4, 8)),  # that are free for connections; 0: many
        "graceful_timeout": choice((1, 3)),
        "max requests": choice((0, 0, 0, 4)),
        "queue seconds": choice((0.0, 0.5, 1.0)),
        "stops": choice(("at end", "at end", "early", "reload")),
        "stops after": choice((0.02, 0.2)),
        "limits": {
            "linger": 0.5, "waiting": choice((1, 3, 8, 100)), "turn": choice((0.000001, 0.004)),
            "read deadline": choice((0.6, 2.0)), "write deadline": choice((1.0, 3.0)),
            "write progress": choice((200, 1000)), "drain": 0.5, "drain limit": choice((5000, 100_000)),
            "buffers": choice((500, 14_000, 100_000)), "remembered": choice((1, 2, 100)),
            "backoff": choice((1, 32)),
        },
        "faults": chosen_faults(random, _FAULTS, 0.5),
    }  # fmt: skip


def run(world: World, cleanup: ExitStack) -> None:
    """Run the clients to their end, then stop the worker."""
    chosen, kernel = world.plan, Kernel(world)
    cleanup.enter_context(replaced({**of_production(world, kernel), **names(world, kernel)}))
    master = _Master(world, kernel)
    clients = [_client(world, master, number) for number in range(chosen["clients"])]
    clients += [_operator(world, master, number) for number in range(chosen["operators"])]
    if chosen["stops"] != "at end":
        call = master.stop if chosen["stops"] == "early" else master.reload
        world.at(chosen["seconds"] * world.random.random() + chosen["stops after"], call)
    world.run(lambda: world.is_quiet and all(each.is_done for each in clients) and master.is_idle, _SECONDS)
    for process in master.running:
        process.loop.check_at_end()
    master.stop()
    world.run(lambda: not master.running, _SECONDS)


class _Master:
    """Starts workers, replaces those that end, and stops or reloads them."""

    def __init__(self, world: World, kernel: Kernel) -> None:
        self._world, self._kernel = world, kernel
        self.backlogs = Backlog(), Backlog(), Backlog()
        self._processes: list[Process] = []
        self._is_stopping = False
        self._start_worker()
        world.invariants.append(lambda: [process.loop.check() for process in self.running])
        world.invariants_at_rest.append(lambda: [process.loop.check_at_rest() for process in self.running])
        world.at(0.5, self._look)

    @property
    def running(self) -> list[Process]:
        return [process for process in self._processes if not process.has_ended]

    @property
    def is_idle(self) -> bool:
        return not any(each.loop.managers.open or each.loop.operators.open for each in self.running)

    def _start_worker(self) -> None:
        free = self._world.plan["descriptors"]
        self._kernel.limit = 1000
        self._processes.append(Process(self._world, self._kernel, self.backlogs))
        if free:
            self._kernel.limit = len(self._kernel.files) + free

    def reload(self) -> None:
        if not self._is_stopping:
            old = self.running
            self._start_worker()
            self._world.at(0.2, lambda: [process.stop() for process in old])

    def stop(self) -> None:
        """Stop: the master closes its listeners first."""
        self._is_stopping = True
        for backlog in self.backlogs:
            backlog.release(self._world.now)
        for process in self.running:
            process.stop()

    def _look(self) -> None:
        """Replace workers that have ended; none may hang, or take long to stop."""
        world = self._world
        for process in self.running:
            graceful_until = (process.stopped_at or world.now) + world.plan["graceful_timeout"]
            latest = min(graceful_until, process.loop.stops_at) + 2.0 + world.stalled
            if world.now > latest:
                world.fail("a stop ends within the graceful time-out", f"{world.now - latest:.1f} s later")
            if world.now - process.heartbeat > _HEARTBEAT_SECONDS + world.stalled:
                world.fail("only a worker that hangs is killed", f"{world.now - process.heartbeat:.1f} s")
        if not self._is_stopping and not self.running:
            self._start_worker()
        world.at(0.5, self._look)


def _client(world: World, master: _Master, number: int) -> Client:
    """Return a client of one of the kinds of the plan."""
    random, chosen = world.random, world.plan
    requests = [_request(world, f"{number}-{each}") for each in range(random.randint(1, 3))]
    length = sum(len(request.raw) for request in requests)
    manners = Manners(starts_at=random.random() * chosen["seconds"])
    match random.choice(chosen["kinds"]):
        case "pipelining":
            manners.is_pipelining = True
        case "slow sender":
            manners.piece, manners.sends_every = random.choice(((40, 0.05), (20, 0.4)))
        case "slow reader":
            manners.reads, manners.reads_every = random.choice(((300, 0.05), (250, 0.2), (100, 0.3)))
        case "no reader":
            manners.reads_at_most = random.choice((0, 300, 1500, 3000))
        case "leaving" | "resetting" | "half-closing" | "silent" as kind:
            manners.leaves = kind
            manners.leaves_after = random.randint(1, length)
            manners.is_pipelining = random.random() < 0.5
    if chosen["keepalive"]:
        manners.thinks = random.choice((0.0, 0.1, chosen["keepalive"] * world.between(0.9, 1.5)))
    manners.stays = random.random() < 0.3
    return Client(world, f"client {number}", random.choice(master.backlogs[:-1]), requests, manners)


def _operator(world: World, master: _Master, number: int) -> Client:
    random, chosen = world.random, world.plan
    work, count = (("fast", 10), ("sleep", 30)), random.randint(1, 3)
    requests = [Request(f"operator {number}-{each}", *random.choice(work), key="0") for each in range(count)]
    starts_at = (random.choice((0.5, random.random())) + 0.1) * chosen["seconds"]  # often all at once
    is_hurried = chosen["stops"] == "at end" and not (chosen["descriptors"] or chosen["max requests"])
    manners = Manners(starts_at=starts_at, is_hurried=is_hurried)
    return Client(world, f"operator {number}", master.backlogs[-1], requests, manners)


def _request(world: World, name: str) -> Request:
    random, chosen = world.random, world.plan
    kind, _, number = random.choice(chosen["work"]).partition("/")
    body = content_of(name, random.choice((0, 0, 0, 300, 900)))
    return Request(name, kind, int(number), f"key{random.randrange(chosen['keys'])}", body)
