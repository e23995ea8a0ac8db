"""Measure the service, beside other settings and other checkouts, round by round.

What is compared is measured in turns, so that whatever else the machine does falls on all alike; what is
reported are medians over the rounds.
"""

import argparse
import math
import os
import re
import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import psutil
import psycopg

from tests.measure import load, report, rounds
from tests.measure.requests import SCENARIOS
from tests.measure.rounds import RoundPlan, Sample
from tests.measure.services import Checkout, MeasuredService, Seed, postgres, seeded, served
from tests.support import delay


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


def _scenarios(text: str) -> list[str]:
    names = [name for name in text.split(",") if name]
    if not set(names) <= SCENARIOS.keys():
        raise argparse.ArgumentTypeError(f"give some of {','.join(SCENARIOS)}")
    return names


def _verifier_delay(text: str) -> float:
    return math.inf if text == "hang" else delay.seconds(text)


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.measure", description=__doc__)
    add = parser.add_argument
    add("--rounds", type=int, default=5)
    add("--seconds", type=int, default=3, help="of each run (default 3)")
    add("--scenarios", type=_scenarios, default=list(SCENARIOS), help=",".join(SCENARIOS))
    add("--connections", type=int, default=32, help="kept connections (default 32)")
    add("--workers", type=int, default=os.cpu_count() or 1, help="of each service (default: one a core)")
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
        type=_verifier_delay,
        metavar="20ms|…|hang",
        help="verify keys by a server that speaks Unkey's protocol, and takes so long to respond",
    )
    add("--out", type=Path, default=Path("bench-results"), help="a folder for the results")
    return parser.parse_args(arguments)


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


def _start(chosen: argparse.Namespace, url: str, folder: Path, stack: ExitStack) -> list[MeasuredService]:
    """Start every service, and return them."""
    size = {"managers": chosen.managers, "stacks": chosen.stacks}
    env = {"WEB_CONCURRENCY": str(chosen.workers)}
    seed = stack.enter_context(seeded(Checkout(), url, **size))
    services: dict[str, tuple[Seed, dict[str, str]]] = {report.OURS: (seed, env)}
    for name, settings in chosen.variant:
        services[name] = (seed, env | settings)
    for number, other in enumerate(chosen.compare, 1):
        name = other.folder.name
        other_seed = stack.enter_context(seeded(other, url, **size))
        services[f"{name}-{number}" if name in services else name] = (other_seed, env)
    delays = {"database_delay": chosen.database_delay, "verifier_delay": chosen.verifier_delay}
    return [stack.enter_context(served(name, *what, folder, **delays)) for name, what in services.items()]


def main(arguments: list[str] | None = None) -> int:
    """Return the exit status: 0 when everything was measured."""
    chosen = _arguments(arguments)
    # On SIGTERM, from `timeout` for one, everything that was started is ended, as after a Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if load.find_wrk() is None:
        print("wrk is what makes the load, and it is not installed (on Debian: apt-get install wrk)")
        return 1
    plan = RoundPlan(
        rounds=chosen.rounds,
        seconds=chosen.seconds,
        scenarios=chosen.scenarios,
        connections=chosen.connections,
        again=chosen.again,
        fails=chosen.verifier_delay == math.inf,
    )
    samples: list[Sample] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stackmgr-bench-")))
        url = stack.enter_context(postgres(folder))
        subjects = _start(chosen, url, folder, stack)
        rounds.warm_up(plan, subjects)
        try:
            samples.extend(rounds.run(plan, subjects, _postmaster(url)))
        except KeyboardInterrupt:
            if not samples:
                raise
            print("interrupted: what was measured so far is reported", file=sys.stderr)
    print(report.write(chosen.out, plan, samples))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("interrupted before anything was measured")
