"""The command: measure, and leave results as JSON, a table and a plot."""

import argparse
import math
import os
import re
import signal
import sys
import tempfile
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import psycopg

from stackmgr.dev.embedded_postgres import EmbeddedPostgres
from tests.bench import contenders, delay, load, report, verifier
from tests.bench.contenders import Checkout, Contender, Surroundings
from tests.bench.requests import SCENARIOS
from tests.bench.rounds import KEPT_CONNECTIONS, LATENCY_CONNECTIONS, Plan, Rounds
from tests.support.memory import reachable

PARTS = ("throughput", "latency", "overload", "slices")
CEILINGS = ("pgbench", *report.FALCONS)
# The log's disk is not what is measured: no checkpoint but the last falls into a run.
_CALM = (
    b"ALTER SYSTEM SET checkpoint_timeout = '1h'",
    b"ALTER SYSTEM SET max_wal_size = '8GB'",
    b"SELECT pg_reload_conf()",
)


def _variant(text: str) -> tuple[str, dict[str, str]]:
    name, _, settings = text.partition(":")
    pairs = [setting.partition("=") for setting in settings.split(",")]
    if not re.fullmatch(r"[\w.-]+", name) or not all(key and equals for key, equals, _ in pairs):
        raise argparse.ArgumentTypeError("give it as NAME:KEY=VALUE,KEY=VALUE")
    return name, {key: value for key, _, value in pairs}


def _checkout(text: str) -> Checkout:
    path, _, python = text.partition("=")
    folder = Path(path).resolve()
    # Not resolved: the python of an environment is a link to one outside.
    program = Path(python).absolute() if python else folder / ".venv/bin/python"
    if not (folder / "deploy/gunicorn.conf.py").exists() or not program.exists():
        raise argparse.ArgumentTypeError("give it as FOLDER=PYTHON, or FOLDER where that has a .venv")
    return Checkout(folder, str(program))


def _names(choices: tuple[str, ...]):
    def parse(text: str) -> list[str]:
        names = [name for name in text.split(",") if name]
        if not set(names) <= set(choices):
            raise argparse.ArgumentTypeError(f"give some of {','.join(choices)}")
        return names

    return parse


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench", description="Measure the service beside what bounds it."
    )
    add = parser.add_argument
    add("--rounds", type=int, default=5)
    add("--seconds", type=int, default=3, help="of each run (default 3)")
    add("--parts", type=_names(PARTS), default=list(PARTS), help=",".join(PARTS))
    add("--scenarios", type=_names(tuple(SCENARIOS)), default=list(SCENARIOS), help=",".join(SCENARIOS))
    add("--connections", type=int, default=KEPT_CONNECTIONS, help="of the throughput part")
    add(
        "--latency",
        type=lambda text: [int(number) for number in text.split(",")],
        default=list(LATENCY_CONNECTIONS),
        metavar="N,N",
        help="the numbers of connections of the latency part",
    )
    add("--ceilings", type=_names(CEILINGS), default=list(CEILINGS), help=",".join(CEILINGS))
    add("--workers", type=int, default=os.cpu_count() or 1, help="of each server (default: one a core)")
    add("--managers", type=int, default=8)
    add("--stacks", type=int, default=200, help="of each manager in the seed")
    add("--again", type=int, default=1, help="how often a disturbed run is repeated")
    add(
        "--variant",
        type=_variant,
        action="append",
        default=[],
        metavar="NAME:KEY=VALUE,…",
        help="measure this checkout once more, with other settings in its environment",
    )
    add(
        "--compare",
        type=_checkout,
        action="append",
        default=[],
        metavar="FOLDER=PYTHON",
        help="measure another checkout too, run by the python of its environment",
    )
    add(
        "--database-delay",
        type=delay.seconds,
        default=0.0,
        metavar="500us|1ms|…",
        help="hold everything to and from the database so long, each way",
    )
    add(
        "--verifier-delay",
        type=verifier.seconds,
        metavar="20ms|…|hang",
        help="verify keys by a server that speaks Unkey's protocol, and takes so long to respond",
    )
    add("--out", type=Path, default=Path("bench-results"), help="a folder for the results")
    return parser.parse_args(arguments)


@contextmanager
def postgres(folder: Path) -> Iterator[str]:
    """Yield the connection string of the server: the one the tests are given, or the embedded one."""
    given = os.environ.get("STACKMGR_TEST_DATABASE_URL")
    if given:
        yield given
        return
    with EmbeddedPostgres(reachable(folder) / "data") as server:
        url = server.url("postgres")
        with psycopg.connect(url, autocommit=True) as connection:
            for statement in _CALM:
                connection.execute(statement)
        yield url


def _postmaster(url: str) -> int | None:
    """Return the server's process id, if it runs on this machine."""
    with psycopg.connect(url) as connection:
        [(pid,)] = connection.execute(
            "SELECT split_part(pg_read_file('postmaster.pid'), chr(10), 1)::integer"
        )
    try:
        return pid if psutil.Process(pid).name().startswith("postgres") else None
    except psutil.NoSuchProcess:
        return None


def _unused(name: str, used: Collection[str]) -> str:
    """Return *name*, or what it is called where that and the ceilings' names are taken."""
    names = [name, *(f"{name}-{number}" for number in range(2, 100))]
    return next(each for each in names if each not in {*used, *CEILINGS})


def _enter(arguments: argparse.Namespace, url: str, folder: Path, stack: ExitStack) -> list[Contender]:
    """Start everybody, and return them."""
    size = {"managers": arguments.managers, "stacks": arguments.stacks}
    env = {"WEB_CONCURRENCY": str(arguments.workers)}
    seed = stack.enter_context(contenders.seeded(Checkout(), url, **size))
    services = {report.OURS: (seed, env)}
    for name, settings in arguments.variant:
        services[_unused(name, services)] = (seed, env | settings)
    for other in arguments.compare:
        other_seed = stack.enter_context(contenders.seeded(other, url, **size))
        services[_unused(other.folder.name, services)] = (other_seed, env)
    away = Surroundings(arguments.database_delay, arguments.verifier_delay)
    found = [contenders.service(name, *what, folder, away) for name, what in services.items()]
    if "slices" in arguments.parts:
        timed = replace(away, has_slices=True)
        found += [contenders.service(name, *what, folder, timed) for name, what in services.items()]
    if "pgbench" in arguments.ceilings:
        if load.find_pgbench() is None:
            print("there is no pgbench: its ceiling is left out", file=sys.stderr)
        else:
            found.append(contenders.pgbench("pgbench", seed, folder, away))
    for name, worker in report.FALCONS.items():
        if name in arguments.ceilings:
            found.append(contenders.bare(name, worker, seed, env, folder))
    return [stack.enter_context(each) for each in found]


def main(arguments: list[str] | None = None) -> int:
    """Return the exit status: 0 when everything was measured."""
    chosen = _arguments(arguments)
    # On SIGTERM, from `timeout` for one, everything that was started is ended, as after a Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if load.find_wrk() is None:
        print("wrk is what makes the load, and it is not installed (on Debian: apt-get install wrk)")
        return 1
    plan = Plan(
        rounds=chosen.rounds,
        seconds=chosen.seconds,
        parts=chosen.parts,
        scenarios=chosen.scenarios,
        connections=chosen.connections,
        latency_connections=chosen.latency,
        again=chosen.again,
        fails=chosen.verifier_delay == math.inf,
    )
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stackmgr-bench-")))
        url = stack.enter_context(postgres(folder))
        everybody = _enter(chosen, url, folder, stack)
        rounds = Rounds(plan, everybody, _postmaster(url))
        try:
            rounds.run()
        except KeyboardInterrupt:
            if not rounds.samples:
                raise
            print("broken off: what was measured so far is reported", file=sys.stderr)
    print(report.write(chosen.out, plan, rounds.samples))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("broken off before anything was measured")
