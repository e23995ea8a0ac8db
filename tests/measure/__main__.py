"""Measure the service, beside other settings, checkouts and sizes, round by round.

What is compared is measured in turns, so that whatever else the machine does falls on all alike;
what is reported are medians over the rounds.
"""

import argparse
import os
import re
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import psycopg

from tests.measure import report
from tests.measure.load import WRK, measured, resident_mb
from tests.measure.report import Sample
from tests.measure.requests import SCENARIOS
from tests.measure.services import Checkout, MeasuredService, postgres, seeded, served
from tests.support import tcp_proxy

# Runs of a second within which a service must respond to each scenario without an error for the first time.
_WARM_UPS = 5
_POSTMASTER = b"SELECT split_part(pg_read_file('postmaster.pid'), chr(10), 1)::integer"


def _variant(text: str) -> tuple[str, dict[str, str]]:
    name, _, settings = text.partition(":")
    pairs = [setting.partition("=") for setting in settings.split(",")]
    if not re.fullmatch(r"[\w.-]+", name) or not all(key and equals for key, equals, _ in pairs):
        raise argparse.ArgumentTypeError("give it as NAME:KEY=VALUE,KEY=VALUE")
    return name, {key: value for key, _, value in pairs}


def _checkout(text: str) -> Checkout:
    path, _, python = text.partition("=")
    folder = Path(path).absolute()
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
    several = {"action": "append", "default": []}
    help_text = "measure this checkout once more, with other settings in its environment"
    add("--variant", type=_variant, metavar="NAME:KEY=VALUE,…", help=help_text, **several)
    help_text = "measure another checkout too, run by the python of its environment"
    add("--compare", type=_checkout, metavar="FOLDER=PYTHON", help=help_text, **several)
    help_text = "hold everything to and from the database so long, each way"
    add("--database-delay", type=tcp_proxy.seconds, default=0.0, metavar="500us|1ms|…", help=help_text)
    help_text = "verify keys by a server that speaks Unkey's protocol, and takes so long to respond"
    add("--verifier-delay", type=tcp_proxy.seconds, metavar="20ms|…", help=help_text)
    help_text = "measure nothing: print a chart of another harness's results, which have this service too"
    add("--chart", type=Path, metavar="FILE", help=help_text)
    add("--out", type=Path, default=Path("bench-results"), help="a folder for the results")
    return parser.parse_args(arguments)


def _postmaster(url: str) -> int | None:
    with psycopg.connect(url) as connection:
        [(pid,)] = connection.execute(_POSTMASTER)
    try:
        return pid if psutil.Process(pid).name().startswith("postgres") else None
    except psutil.NoSuchProcess:
        return None


def _start(chosen: argparse.Namespace, url: str, folder: Path, stack: ExitStack) -> list[MeasuredService]:
    size = {"managers": chosen.managers, "stacks": chosen.stacks}
    env = {"WEB_CONCURRENCY": str(chosen.workers)}
    seed = stack.enter_context(seeded(Checkout(), url, **size))
    services = {report.OURS: (seed, env)}
    for name, settings in chosen.variant:
        services[name] = (seed, env | settings)
    for number, other in enumerate(chosen.compare, 1):
        name = other.folder.name
        seed = stack.enter_context(seeded(other, url, **size))
        services[f"{name}-{number}" if name in services else name] = (seed, env)
    delays = {"database_delay": chosen.database_delay, "verifier_delay": chosen.verifier_delay}
    return [stack.enter_context(served(name, *what, folder, **delays)) for name, what in services.items()]


def _warm_up(chosen: argparse.Namespace, services: list[MeasuredService]) -> None:
    for service in services:
        for scenario in chosen.scenarios:
            runs = (service.run(scenario, chosen.connections, 1) for _ in range(_WARM_UPS))
            if not any(run.requests and not run.errors for run in runs):
                raise RuntimeError(f"{service.name} does not serve {scenario} without errors")


def _samples(chosen, services: list[MeasuredService], postmaster: int | None) -> Iterator[Sample]:
    """Yield the samples of every round; in each another service is the first."""
    for number in range(1, chosen.rounds + 1):
        first = (number - 1) % len(services)
        for scenario in chosen.scenarios:
            for service in services[first:] + services[:first]:
                sample = _calmest(chosen, service, scenario, number, postmaster)
                print(sample, file=sys.stderr, flush=True)
                yield sample


def _calmest(
    chosen: argparse.Namespace, service: MeasuredService, scenario: str, number: int, postmaster: int | None
) -> Sample:
    """Measure, again if the machine was busy with something else, and return the calmest run."""
    runs: list[Sample] = []
    while not runs or (runs[-1].cost.disturbed and len(runs) <= chosen.again):
        with measured(service.service.pid, postmaster, service.helpers) as cost:
            load = service.run(scenario, chosen.connections, chosen.seconds)
        memory = resident_mb(service.service.pid)
        where = {"scenario": scenario, "service": service.name, "round": number}
        runs.append(Sample(**where, load=load, cost=cost, rss_mb=memory))
    return min(runs, key=lambda sample: sample.cost.noise)


def main(arguments: list[str] | None = None) -> int:
    chosen = _arguments(arguments)
    if chosen.chart:
        print(report.chart(chosen.chart.read_text()))
        return 0
    # On SIGTERM, from `timeout` for one, everything that was started is ended, as after a Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if WRK is None:
        print("wrk is what makes the load, and it is not installed (on Debian: apt-get install wrk)")
        return 1
    samples: list[Sample] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stackmgr-bench-")))
        url = stack.enter_context(postgres(folder))
        services = _start(chosen, url, folder, stack)
        _warm_up(chosen, services)
        try:
            samples.extend(_samples(chosen, services, _postmaster(url)))
        except KeyboardInterrupt:
            if not samples:
                raise
            print("interrupted: what was measured so far is reported", file=sys.stderr)
    print(report.write(chosen.out, vars(chosen), samples))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("interrupted before anything was measured")
