"""The scenario of the HTTP server: clients of every kind, a worker, its master, a remote verifier."""

from contextlib import ExitStack
from random import Random

from tests.simulation import verifier
from tests.simulation.application import Application, content_of, judge
from tests.simulation.clients import Client, Manners, Request, make_request
from tests.simulation.kernel import Kernel
from tests.simulation.names import of_production, replaced
from tests.simulation.process import KILL_SECONDS, Process, names
from tests.simulation.sockets import Backlog, Network
from tests.simulation.web_invariants import WorkerInvariants
from tests.simulation.world import Plan, World, chosen_faults

name = "web"

_FAULTS = {
    "preemption": 0.3, "stall": 0.002, "short transfers": 0.5, "unforeseen exception": 0.02,
    "no more threads": 0.3, "slow resolver": 0.3, "unknown host": 0.2, "a dropped connect": 0.2,
}  # fmt: skip
_KINDS = (
    "quick", "pipelining", "slow sender", "slow reader", "no reader", "stopping reader", "leaving",
    "resetting", "half-closing", "malformed", "silent",
)  # fmt: skip
_PATHS = ("fast/10", "fast/700", "sleep/30", "sleep/300", "page/2500", "page/6000", "raise/0", "thread/40",
          "spin/4", "echo/300", "echo/900", "verify/0", "verify/0")  # fmt: skip
_SLOW_PATHS = ("sleep/300", "sleep/700", "page/6000", "verify/0", "thread/40")
_MODES = (
    "ok", "ok", "slow", "hangs", "500", "429", "408", "drips", "reset", "closed", "malformed", "refused",
)  # fmt: skip
_SECONDS = 90.0


def plan(random: Random) -> Plan:
    """Return what a seed chooses."""
    choice, hangs = random.choice, random.random() < 0.03
    crowd = random.random() < 0.25  # of requests that are slow, most of one key
    return {
        "clients": random.randint(6, 10) if crowd else random.randint(2, 8),
        "operators": choice((0, 0, 1, 2)),
        "kinds": ["quick", *random.sample(_KINDS, random.randint(1, 4))],
        "paths": random.sample(_SLOW_PATHS if crowd else _PATHS, random.randint(1, 3)) + ["hang/30"] * hangs,
        "keys": choice((1, 2)) if crowd else random.randint(1, 3),
        "seconds": 0.05 if crowd else choice((0.05, 0.5, 2.0)),  # in which the clients start
        "threads": 4 if crowd else choice((1, 2, 4)),
        "keepalive": choice((0, 1, 2)),
        "worker_connections": choice((3, 6, 30, 30)),
        "descriptors": choice((0, 0, 4, 8)),  # that are free for connections; 0: many
        "graceful_timeout": choice((1, 3)),
        "max requests": choice((0, 0, 0, 4)),
        "queue seconds": choice((0.0, 0.5, 1.0)),
        "stops": choice(("at end", "at end", "early", "reload")),
        "stops after": choice((0.02, 0.2)),
        "hangs": hangs,
        "verifier": random.sample(_MODES, random.randint(1, 3)),
        "limits": {
            "linger": 0.5, "waiting": choice((1, 3, 8, 100)), "turn": choice((0.000001, 0.004)),
            "read deadline": choice((0.6, 2.0)), "write deadline": choice((1.0, 3.0)),
            "write progress": choice((200, 1000)), "drain": 0.5, "drain limit": choice((5000, 100_000)),
            "buffers": choice((500, 14_000, 100_000)), "body": 600,
            "remembered": choice((1, 2, 100)), "backoff": choice((1, 32)),
        },
        "faults": chosen_faults(random, _FAULTS, 0.5),
    }  # fmt: skip


def run(world: World, cleanup: ExitStack) -> None:
    """Run the clients to their end, then stop the worker.  Raises Violation."""
    chosen = world.plan = {**world.plan, "threads": world.plan["threads"] or 1}
    kernel = Kernel(world)
    network = Network(kernel, world)
    found = dict(of_production(world, kernel)) | dict(names(world, kernel, chosen["limits"]))
    cleanup.enter_context(replaced(found | dict(verifier.names(world, network))))
    service = _Service(world, network)
    service.start_worker()
    clients = [_client(world, service, number) for number in range(chosen["clients"])]
    clients += [_operator(world, service, number) for number in range(chosen["operators"])]
    if chosen["stops"] == "early":
        world.at(chosen["seconds"] * world.random.random() + chosen["stops after"], service.stop)
    elif chosen["stops"] == "reload":
        world.at(chosen["seconds"] * world.random.random() + chosen["stops after"], service.reload)
    world.invariants.append(service.check)
    world.invariants_at_rest.append(service.check_at_rest)
    world.run(
        lambda: world.is_quiet and all(client.is_done for client in clients) and service.is_idle, _SECONDS
    )
    service.check_end()
    service.stop()
    world.run(lambda: service.has_ended, _SECONDS)


class _Service:
    """The worker processes and their master."""

    def __init__(self, world: World, network: Network) -> None:
        self._world, self._kernel = world, network.kernel
        self.network = network
        self._remote = verifier.RemoteVerifier(network, list(world.plan["verifier"]))
        self._verifiers: list[verifier.WatchedVerifier] = []
        self.backlogs = Backlog(64), Backlog(64), Backlog(64)
        self._processes: list[Process] = []
        self._invariants: list[WorkerInvariants] = []
        self._is_stopping = False
        world.at(0.5, self._look)

    def start_worker(self) -> None:
        """Start a worker process."""
        self._kernel.limit = 1000
        plan = self._world.plan
        verifies = verifier.WatchedVerifier(self.network)
        self._verifiers.append(verifies)
        application = Application(self._world, plan["threads"], verifies.verify)
        process = Process(self._world, self.network, application, self.backlogs)
        self._processes.append(process)
        process.start(self._prepared)

    def _prepared(self, process: Process) -> None:
        self._invariants.append(WorkerInvariants(process))
        free = self._world.plan["descriptors"]
        if free and len(self._invariants) == len(self._processes):
            self._kernel.limit = len(self._kernel.files) + free

    def reload(self) -> None:
        """Start a worker; stop the others once it serves."""
        if not self._is_stopping:
            old = list(self._processes)
            self.start_worker()
            self._world.at(0.2, lambda: [process.stop() for process in old])

    def stop(self) -> None:
        """Stop, as the master does: it closes its listeners first."""
        self._is_stopping = True
        for backlog in self.backlogs:
            backlog.is_held = False
            backlog.reset_unheld()
        for process in self._processes:
            process.stop()

    def _look(self) -> None:
        """Replace workers that have ended, kill those that hang."""
        world, grace = self._world, self._world.plan["graceful_timeout"]
        for process in self._processes:
            application = process.worker.wsgi
            if process.has_ended:
                continue
            if (
                process.stopped_at is not None
                and not application.hangs
                and world.now > process.stopped_at + grace + 2.0 + world.stalled
            ):
                world.fail(
                    "a stop ends within the graceful time-out", f"{world.now - process.stopped_at:.1f} s"
                )
            if world.now - process.heartbeat > KILL_SECONDS:
                if not application.hangs:
                    world.fail("only a worker that hangs is killed", "it does not")
                process.exit()
            elif application.hangs and world.now - application.hangs > KILL_SECONDS + 2 + world.stalled:
                world.fail("a worker that hangs sends no heartbeat", f"{world.now - application.hangs:.1f} s")
        if not self._is_stopping and all(process.has_ended for process in self._processes):
            self.start_worker()
        world.at(0.5, self._look)

    @property
    def is_idle(self) -> bool:
        """Whether no worker has a connection left."""
        return not any(
            process.worker.loop.managers.open or process.worker.loop.operators.open
            for process in self._processes
            if not process.has_ended and hasattr(process.worker, "loop")
        )

    @property
    def has_ended(self) -> bool:
        return all(process.has_ended for process in self._processes)

    def check(self) -> None:
        """Check what holds after each step."""
        for invariants in self._invariants:
            invariants.check()

    def check_at_rest(self) -> None:
        """Check what holds when no thread can run."""
        for invariants in self._invariants:
            invariants.check_at_rest()

    def check_end(self) -> None:
        """Check what is left."""
        for invariants in self._invariants:
            if not invariants.has_ended:
                invariants.check_end()
        if len(self._verifiers) == 1 and not self._processes[0].has_ended:
            self._verifiers[0].check_end()


def _client(world: World, service: _Service, number: int) -> Client:
    """Return a client of one of the kinds of the plan."""
    random, chosen = world.random, world.plan
    kind = random.choice(chosen["kinds"] or ["quick"])
    requests = [_request(world, f"{number}-{each}") for each in range(random.randint(1, 3))]
    manners = Manners(requests, starts_at=random.random() * chosen["seconds"])
    match kind:
        case "pipelining":
            manners.is_pipelining = True
        case "slow sender":
            manners.piece, manners.sends_every = random.choice(((40, 0.05), (20, 0.4)))
        case "slow reader":
            manners.reads, manners.reads_every = random.choice(((300, 0.05), (250, 0.2), (100, 0.3)))
        case "no reader":
            manners.reads_at_most = 0
        case "stopping reader":
            manners.reads_at_most = random.choice((300, 1500, 3000))
        case "leaving" | "resetting" | "half-closing":
            _leave(manners, kind, random)
        case "malformed":
            last = requests[-1]
            last.raw, last.is_valid = last.raw.replace(b"Host", b"H st"), False
        case "silent":
            manners.leaves_after = random.randint(1, 20)
            manners.leaves = "stay"
    if chosen["keepalive"]:
        manners.thinks = random.choice((0.0, 0.1, chosen["keepalive"] * world.between(0.9, 1.5)))
    manners.stays = random.random() < 0.3
    backlog = random.choice(service.backlogs[:-1])
    return Client(f"client {number}", service.network, backlog, manners, judge)


def _leave(manners: Manners, kind: str, random: Random) -> None:
    """Let a client leave after some of its bytes."""
    length = sum(len(request.raw) for request in manners.requests)
    manners.leaves_after = random.randint(1, length)
    manners.leaves = {"leaving": "close", "resetting": "reset", "half-closing": "half"}[kind]
    if kind == "half-closing" and manners.leaves_after % 2:  # before the body of the last
        manners.leaves_after = length - len(manners.requests[-1].raw.partition(b"\r\n\r\n")[2])
    manners.is_pipelining = random.random() < 0.5


def _operator(world: World, service: _Service, number: int) -> Client:
    """Return a client of the operator's listener."""
    random, chosen = world.random, world.plan
    paths = [random.choice(("/fast/10", "/sleep/30")) for _ in range(random.randint(1, 3))]
    requests = [make_request(f"operator {number}-{each}", path, key="0") for each, path in enumerate(paths)]
    starts_at = (random.choice((0.5, random.random())) + 0.1) * chosen["seconds"]  # often all at once
    manners = Manners(requests, starts_at=starts_at)
    client = Client(f"operator {number}", service.network, service.backlogs[-1], manners, judge)
    client.is_operator = True
    client.is_hurried = chosen["stops"] == "at end" and not (
        chosen["descriptors"]
        or chosen["hangs"]
        or chosen["max requests"]
        or "unforeseen exception" in world.faults
    )
    return client


def _request(world: World, name: str) -> Request:
    random, chosen = world.random, world.plan
    path = random.choice(chosen["paths"] or ["fast/10"])
    key = f"key{random.randrange(chosen['keys'])}"
    kind, number = path.split("/")
    if kind == "echo":
        chunk = random.choice((0, 0, 7, 200))
        body = content_of(name, int(number))
        return make_request(name, f"/{path}", key=key, body=body, chunk=chunk, expects=random.random() < 0.3)
    method = "HEAD" if random.random() < 0.1 else ""
    return make_request(name, f"/{path}", key=key, method=method)
