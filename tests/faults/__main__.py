"""The command: run cells and drills, print one row for each, and fail if a bound does not hold."""

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.faults import endurance, patroni, upgrade
from tests.faults.cells import CELLS
from tests.faults.report import HEADINGS, print_headings
from tests.faults.runner import run
from tests.faults.stage import NoPlace
from tests.support.memory import memory
from tests.support.postgres import FaultyPostgres, faulty_postgres

DRILLS = ("endurance", "upgrade", "patroni")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults",
        description="Inject faults into the running service while clients use it, and compare what they cost"
        " with the bound of each.  Without names: every cell, and every drill in a short form.",
    )
    add = parser.add_argument
    names_help = "cells, by the beginning of their names; endurance, upgrade, patroni"
    add("names", nargs="*", metavar="NAME", help=names_help)
    add("--list", action="store_true", help="print the names")
    add("--seed", type=int, default=time.time_ns() % 1_000_000, help="repeats a run")
    add("--times", type=int, default=1, help="inject each fault so many times")
    source_help = "upgrade: a checkout of the old release; by default this one without a new migration"
    add("--from", dest="source", type=Path, metavar="FOLDER", help=source_help)
    add = parser.add_argument_group("endurance").add_argument
    settings = [*endurance.SETTINGS]
    settings_help = f"of {', '.join(settings)}; each by default"
    add("--settings", nargs="+", choices=settings, default=settings, metavar="SETTING", help=settings_help)
    add("--writes", type=int, default=4000, help="acknowledged under faults, in each setting")
    add("--soak", type=float, default=0.0, metavar="SECONDS", help="before them, without faults")
    add("--rest", type=float, default=0.5, metavar="SECONDS", help="between two faults, in the mean")
    return parser.parse_args()


def main() -> int:
    """Return the exit status: 0 if every bound holds."""
    arguments = _arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # or what it has started would go on
    if arguments.list:
        print(*CELLS, *DRILLS, sep="\n")
        return 0
    tempfile.tempdir = memory()  # logs and data: a slow disk is not what is measured
    names = arguments.names or [*CELLS, *DRILLS]
    chosen = [each for each in (*CELLS, *DRILLS) if each.startswith(tuple(names))]
    for name in names:
        if not any(each.startswith(name) for each in chosen):
            sys.exit(f"there is no cell {name}; --list prints them")
    print(f"seed {arguments.seed}\n")
    print_headings(*HEADINGS)
    problems = []
    with faulty_postgres() as server:
        for name in chosen:
            found = _attempted(name, partial(_work(name), server, arguments))
            problems += [f"{name}: {problem}" for problem in found]
    for problem in problems:
        print(problem, file=sys.stderr)
    return int(bool(problems))


def _attempted(name: str, act: Callable[[], list[str]]) -> list[str]:
    """Return the problems that *act* has found."""
    try:
        return act()
    except NoPlace as ex:
        print(f"{name}: left out: {ex}", file=sys.stderr, flush=True)
        return []
    except AssertionError as ex:
        print(f"{name}: {ex}", file=sys.stderr, flush=True)
        return [str(ex)]


def _work(name: str) -> Callable[[FaultyPostgres, argparse.Namespace], list[str]]:
    """Return what runs this cell or drill, prints rows, and returns what is wrong."""
    if name == "endurance":
        return _endurance
    if name == "upgrade":
        return lambda server, given: upgrade.show(
            *upgrade.run(server.url("postgres"), given.seed, given.times, given.source)
        )
    if name == "patroni":
        return lambda _, given: patroni.run(given.seed, given.times)
    return lambda server, given: run(CELLS[name], server, given.seed, given.times).show()


def _endurance(server: FaultyPostgres, given: argparse.Namespace) -> list[str]:
    problems = []
    for setting in given.settings:
        plan = endurance.Plan(
            setting=setting,
            seed=given.seed,
            writes=given.writes,
            soak_seconds=given.soak,
            rest=given.rest,
        )
        report, samples = endurance.run(plan, server)
        problems += report.show()
        for line in samples.lines():
            print(f"{setting}: {line}", flush=True)
    return problems


if __name__ == "__main__":
    sys.exit(main())
