"""The drills: each a fault, inflicted again and again while clients go on."""

import signal
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass

import psutil
import psycopg

from tests.drills import failover, network, verifier, volume
from tests.drills.stage import DATABASE_TIMEOUT, Report, Stage, judged, staged
from tests.support.postgres import FaultyPostgres
from tests.support.server import workers_replaced
from tests.support.waiting import eventually
from tests.support.workload import Workload, http_transport

_CLIENTS = 6
_CROWD = 48
_PAUSE = 0.02
_CLIENT_TIMEOUT = 30.0
_SETTLE = 0.5
_NOT_MIXED = {"mixed", "pool-exhaustion"}


@dataclass(frozen=True)
class Drill:
    """A fault; `short` and `long` say how often; `bounded` that every response is to come in time.

    `rest` is how many seconds there are between two faults; a `control` runs on a server that cannot keep
    what it acknowledges, and has to show it; `place` makes a server of its own for a drill that needs one;
    `with_unkey` has an Unkey verify the keys.
    """

    name: str
    inflict: Callable[[Stage], None]
    short: int
    long: int
    bounded: bool = True
    rest: float = 1.0
    clients: int = _CLIENTS
    control: bool = False
    place: Callable[[], AbstractContextManager[FaultyPostgres]] | None = None
    with_unkey: bool = False

    @property
    def mixes(self) -> bool:
        """Whether it may be one of several on the same server."""
        return not (self.control or self.place or self.with_unkey or self.name in _NOT_MIXED)


def _workers(stage: Stage) -> list[psutil.Process]:
    return list(psutil.Process(stage.service.pid).children())


def kill_worker(stage: Stage) -> None:
    workers = _workers(stage)
    if workers:
        stage.chance.choice(workers).kill()


def kill_master(stage: Stage) -> None:
    """The workers find out and end by themselves; then a supervisor would start the service again."""
    orphans = _workers(stage)
    stage.service.process.kill()
    stage.service.process.wait()
    psutil.wait_procs(orphans, 30)
    stage.stop_service()
    stage.start_service()


def reload_workers(stage: Stage) -> None:
    with workers_replaced(stage.service.pid, 60):
        stage.service.process.send_signal(signal.SIGHUP)


def drain(stage: Stage) -> None:
    stage.stop_service()
    stage.start_service()


def kill_backend(stage: Stage) -> None:
    backends = [process for process in stage.server.processes()[1:] if _serves_a_client(process)]
    if backends:
        stage.server.kill_backend(stage.chance.choice(backends).pid)
    eventually(stage.server.accepts)


def _serves_a_client(process: psutil.Process) -> bool:
    try:
        return " stackmgr " in " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return False


def crash_database(stage: Stage) -> None:
    stage.server.crash()
    stage.server.start()
    eventually(stage.server.accepts)


def restart_database(stage: Stage) -> None:
    stage.server.stop(stage.chance.choice((signal.SIGINT, signal.SIGQUIT)))
    stage.server.start()
    eventually(stage.server.accepts)


def freeze_database(stage: Stage) -> None:
    with stage.server.frozen():
        time.sleep(DATABASE_TIMEOUT * 1.5)


def partition(stage: Stage) -> None:
    stage.proxy.hold()
    time.sleep(DATABASE_TIMEOUT * 1.5)
    stage.proxy.release()


def cut_network(stage: Stage) -> None:
    stage.proxy.cut()


def crash_careless_database(stage: Stage) -> None:
    with stage.server.careless():
        time.sleep(_SETTLE)
        crash_database(stage)


def hold_rows(stage: Stage) -> None:
    """Keep every stack locked for longer than anybody waits."""
    with psycopg.connect(stage.server.url()) as connection:
        connection.execute(b"SELECT FROM stackmgr.stacks FOR UPDATE")
        time.sleep(DATABASE_TIMEOUT)


def anything(stage: Stage) -> None:
    """Deal the other faults one after the other, shuffled anew each time all have had their turn."""
    if not stage.deck:
        stage.deck = [drill.name for drill in DRILLS.values() if drill.mixes]
        stage.chance.shuffle(stage.deck)
    DRILLS[stage.deck.pop()].inflict(stage)


DRILLS = {
    drill.name: drill
    for drill in (
        Drill("worker-kill", kill_worker, 5, 300),
        Drill("master-kill", kill_master, 1, 50),
        Drill("reload", reload_workers, 2, 100),
        Drill("drain", drain, 1, 50),
        Drill("backend-kill", kill_backend, 3, 100),
        Drill("database-crash", crash_database, 1, 50),
        Drill("database-restart", restart_database, 1, 50),
        Drill("freeze", freeze_database, 1, 20),
        Drill("partition", partition, 1, 20),
        Drill("network-cut", cut_network, 5, 100, rest=0.3),
        Drill("lost-packets", network.lose_packets, 1, 20, place=network.distant_server),
        Drill("full-volume", volume.fill_volume, 2, 20, place=volume.small_volume),
        Drill("held-rows", hold_rows, 1, 20),
        # More clients than connections: they wait for one another, so that only each request is bounded.
        Drill("pool-exhaustion", hold_rows, 1, 20, bounded=False, clients=_CROWD),
        Drill("verifier-outage", verifier.hang_reset_and_recover, 2, 50, with_unkey=True),
        Drill("failover", failover.to_a_synchronous_standby, 1, 20),
        Drill("control-lagging-standby", failover.to_a_standby_that_lags, 1, 3, control=True),
        Drill("control-careless-commit", crash_careless_database, 1, 3, control=True),
        Drill("mixed", anything, 12, 1200, rest=0.5),
    )
}


def run(drill: Drill, server: FaultyPostgres, seed: int, times: int) -> Report:
    """Carry out a drill and return what came of it.  Raises NoPlace where it cannot be carried out."""
    with ExitStack() as undo:
        if drill.place is not None:
            server = undo.enter_context(drill.place())
        stage = undo.enter_context(staged(server, seed, with_unkey=drill.with_unkey))
        workload = Workload(seed, stage.managers, http_transport(lambda: stage.service.port, _CLIENT_TIMEOUT))
        workload.start(drill.clients, pause=_PAUSE)
        try:
            time.sleep(_SETTLE)
            for _ in range(times):
                drill.inflict(stage)
                stage.healed.append(time.monotonic())
                time.sleep(drill.rest)
        finally:
            workload.stop()
        stage.stop_service()
        return judged(
            Report(drill.name, seed, times, drill.bounded, drill.control), stage.evidence(), workload
        )
