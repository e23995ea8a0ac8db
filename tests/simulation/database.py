"""The scenario of the database: the scheduler, the pool, the line, sessions and libpq, without HTTP."""

import gc
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from random import Random
from typing import Any
from uuid import UUID

import psycopg.generators
from greenlet import getcurrent

from stackmgr.access.verifiers.database import DatabaseVerifier, LastUse
from stackmgr.database import connection, pool, round_trips
from stackmgr.scheduler import Scheduler
from stackmgr.stacks import repository
from tests.simulation import database_invariants as invariants
from tests.simulation import names
from tests.simulation.kernel import Kernel
from tests.simulation.libpq import ClientSocket, SimulatedTransformer, connecting
from tests.simulation.mutants import MUTANTS
from tests.simulation.postgres import Server
from tests.simulation.requests import Client, Key
from tests.simulation.round_trip_invariants import Schedule, WatchedTrips
from tests.simulation.world import Plan, Violation, World, chosen_faults
from tests.support.greenlets import Running

_URL = "host=/simulated dbname=stackmgr"
# The highest probability of each, at each opportunity.
FAULTS = {
    "preemption": 0.3, "stall": 0.002, "no more threads": 0.2, "connection lost before the statement": 0.08,
    "connection lost after the statement": 0.08, "response never comes": 0.05, "slow statement": 0.05,
    "warning": 0.05, "serialization failure": 0.15, "deadlock": 0.05, "statement timeout": 0.05,
    "backend terminated": 0.05, "disk full": 0.05, "commit fails": 0.1, "unforeseen exception": 0.01,
    "full socket": 0.1, "partial read": 0.4, "connecting hangs": 0.1, "connection refused": 0.3,
    "check fails": 0.05,
}  # fmt: skip
_RARER_FAULTS = {"other settings": 0.2, "idle connection lost": 0.1, "unusable parameter": 0.1}
_EVENTS = ("restart", "crash", "freeze", "fail_over", "migrate", "kill_one", "move_key")
_LAST_USE_SECONDS = 0.7
_BATCH_BYTES = 4096  # more than most batches have, less than some
_SETTLING = 8.0  # seconds after the last request: a connection attempt may hang for two


class DatabaseParts:
    def __init__(self, world: World, cleanup: ExitStack) -> None:
        plan, size = world.plan, world.plan["pool_size"]
        self.world = invariants.WatchedPool.world = world
        self.kernel, self.server = Kernel(world), Server(world)
        simulated = {
            **names.simulated(world, self.kernel), (connection, "Transformer"): SimulatedTransformer,
            (psycopg.generators, "connect"): connecting(world, self.kernel, self.server),
            (repository, "uuid4"): lambda: UUID(int=world.random.getrandbits(128)),
            (round_trips, "_MAX_PARAMETER_BYTES"): _BATCH_BYTES, (pool, "Pool"): invariants.WatchedPool,
            (pool, "DatabaseConnection"): invariants.WatchedConnection,
            (pool, "_Waiter"): lambda: invariants.WatchedWaiter(self.line),
        }  # fmt: skip
        cleanup.enter_context(names.replaced(simulated))
        self.database = invariants.WatchedDatabase(_URL, pool_size=size, deadline=plan["deadline"])
        self.trips = self.database.round_trips = WatchedTrips(self.database, size, world)
        cleanup.callback(setattr, self.database._pool, "_closed", "yes")  # nor does its finalizer wait
        self.line = self.database.line = invariants.Line(world, self.database, self.server, size)
        for at, event, *arguments in plan["events"]:
            world.at(at, self._happen, event, arguments)

    def _happen(self, event: str, arguments: list[Any]) -> None:
        self.world.note("event", event, *arguments)
        getattr(self.server, event)(*arguments)

    def close(self) -> None:
        world = self.world
        closing = world.start("closing", self.database.close)
        others = [thread for thread in world.threads if thread.name.startswith(("stackmgr", "thread"))]
        world.run(lambda: not any(thread.is_alive() for thread in [closing, *others]), 10)
        left = [file.number for file in self.kernel.files.values() if isinstance(file, ClientSocket)]
        if left:
            raise Violation("no descriptor is left", f"of connections to the server: {left}")


class RequestThread(Running):
    """A thread that runs a scheduler, and starts calls in greenlets of it, *number* at a time."""

    def __init__(self, parts: DatabaseParts, number: int) -> None:
        self.world, self._free, self._has_ended = parts.world, number, False
        self._calls, self.scheduler = deque(), Scheduler()
        self.thread = self.world.start("requests", self._run)
        self.schedule = Schedule(self.world, self.scheduler, self.thread)

    def _run(self) -> None:
        self.world.current.only_waits_in = getcurrent()
        self.scheduler.run(self._turn, self._idle_seconds, lambda: bool(self._calls and self._free))

    def _call(self, call: Callable[[], None]) -> None:
        call()
        self._free += 1

    def start(self, call: Callable[[], None]) -> None:
        self._calls.append(partial(self._call, call))
        self.scheduler.wake()


def plan(random: Random) -> Plan:
    seconds = random.choice((0.05, 0.3, 3.0))
    chosen = {
        "clients": random.choice((1, 2, 3, 4, 5, 12)), "keys": random.randint(1, 3),
        "requests": random.randint(1, 5),  # of each client
        "threads": random.choice((0, 0, 1, 2)),  # clients in threads without a scheduler
        "greenlets": random.randint(1, 12), "pool_size": random.randint(1, 3),
        "pause": random.choice((0.0, 0.0, 0.01, 1.1)), "deadline": random.choice((0.5, 2.0)),
        "pooler": random.random() < 0.15,
        "events": [_event(random, seconds) for _ in range(random.choice((0, 0, 1, 1, 2, 3)))],
        "faults": chosen_faults(random, FAULTS, random.choice((0.1, 0.3, 0.5))),
    }  # fmt: skip
    if random.random() < 0.3:
        chosen["faults"] |= chosen_faults(random, _RARER_FAULTS, 0.5)
    if random.random() < 0.1:
        holds = [(round(random.random() * seconds, 4), "hold", round(random.random(), 4)) for _ in range(5)]
        chosen["events"] += holds
    if random.random() < 0.1:
        chosen |= {"hot": True, "clients": 16, "keys": 1, "requests": 8, "threads": 0, "greenlets": 16}
        chosen |= {"pool_size": 3, "deadline": 2.0, "events": [], "faults": {"slow statement": 0.02}}
    return chosen


def _event(random: Random, seconds: float) -> tuple[Any, ...]:
    event = random.choice(_EVENTS)
    at = round(random.random() * seconds, 4)
    lasts = event in ("restart", "crash", "freeze")
    return (at, event, round(random.random() * 2, 4)) if lasts else (at, event)


def _run(world: World, cleanup: ExitStack) -> None:
    parts = DatabaseParts(world, cleanup)
    tables = parts.server.tables
    keys = [Key(number, tables) for number in range(world.plan["keys"])]
    _finish(world, parts.database.open)
    requests = RequestThread(parts, world.plan["greenlets"])
    running = set()
    verifier = DatabaseVerifier(LastUse(parts.database, _LAST_USE_SECONDS))
    for number in range(world.plan["clients"] + world.plan["threads"]):
        client = Client(world, number, keys[number % len(keys)], parts.database, verifier)
        running.add(client.name)
        if number < world.plan["threads"]:
            world.start(client.name, partial(_run_client, client, running))
        else:
            client.end_call = partial(_continue, client, running, requests)
            world.at(world.between(0, 0.01), _continue, client, running, requests)
    world.run(lambda: not running, 60)
    world.quiet()
    parts.server.come_up()
    settled = world.now + _SETTLING
    world.at(_SETTLING, lambda: None)
    world.run(lambda: world.now >= settled, 2 * _SETTLING)
    parts.line.check_at_end()
    requests.schedule.check_at_end()
    parts.trips.check_at_end()
    for work in world.at_exit:
        _finish(world, work)
    lost = [key.digest for key in keys if key.is_used and key.digest not in tables.used]
    if lost and "no more threads" not in world.plan["faults"]:
        raise Violation("no use of a key is lost", repr(lost))
    _probe(parts)
    parts.close()


def _continue(client: Client, running: set[str], requests: RequestThread) -> None:
    call = client.next_call()
    if call is None:
        running.discard(client.name)
    elif client.world.plan["pause"]:
        client.world.at(client.world.between(0, client.world.plan["pause"]), requests.start, call)
    else:
        requests.start(call)


def _run_client(client: Client, running: set[str]) -> None:
    while (call := client.next_call()) is not None:
        call()
        client.world.block(client.world.between(0, client.world.plan["pause"] + 0.001))
    running.discard(client.name)


def _probe(parts: DatabaseParts) -> None:
    world, database, size = parts.world, parts.database, parts.world.plan["pool_size"]
    acquired: list[Any] = []
    _finish(world, lambda: [acquired.append(database.acquire(world.now + 10.0)) for _ in range(size)])
    if len(acquired) != size:
        raise Violation("no connection and no room is lost", f"{len(acquired)} of {size} can be acquired")
    _finish(world, lambda: [database.release(found) for found in acquired])


def _finish(world: World, call: Callable[[], object]) -> None:
    thread = world.start("probe", call)
    world.run(lambda: not thread.is_alive(), 10)


def run(seed: int, mutant: str | None = None) -> World:
    world = World(seed, plan(Random(f"plan {seed}")))
    with ExitStack() as cleanup:
        if mutant is not None:
            MUTANTS[mutant].plant(cleanup)
        cleanup.callback(world.end)
        if gc.isenabled():
            gc.disable()  # what it ends, and when, would differ from process to process
            cleanup.callback(gc.enable)
        try:
            _run(world, cleanup)
        except Violation as ex:
            world.fail(ex.invariant, str(ex).partition(": ")[2], ex.__cause__)
        world.end()
    return world
