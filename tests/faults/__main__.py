"""The command: run cells and drills, print one row for each, and fail if a bound does not hold."""

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.faults import endurance, upgrade
from tests.faults.report import HEADINGS, Report, print_headings
from tests.faults.runner import CELLS, run
from tests.faults.stage import NoPlace
from tests.support.memory import memory
from tests.support.postgres import FaultyPostgres, faulty_postgres
from tests.support.releases import commit

DRILLS = ("endurance", "upgrade")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults",
        description="Inject faults into the running service while clients use it, and compare what they cost"
        " with the bound of each.  Without names: every cell, and every drill in a short form.",
    )
    add = parser.add_argument
    names_help = "cells, by the beginning of their names; endurance, upgrade"
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
    print(f"{time.strftime('%F')}, {commit()}, seed {arguments.seed}\n")
    print_headings(*HEADINGS)
    problems = []
    with faulty_postgres() as server:
        for name in chosen:
            problems += [f"{name}: {problem}" for problem in _problems(name, server, arguments)]
    for problem in problems:
        print(problem, file=sys.stderr)
    return int(bool(problems))


def _problems(name: str, server: FaultyPostgres, given: argparse.Namespace) -> list[str]:
    try:
        return [problem for report in _reports(name, server, given) for problem in report.show()]
    except NoPlace as ex:
        print(f"{name}: left out: {ex}", file=sys.stderr, flush=True)
        return []
    except AssertionError as ex:
        print(f"{name}: {ex}", file=sys.stderr, flush=True)
        return [str(ex)]


def _reports(name: str, server: FaultyPostgres, given: argparse.Namespace) -> Iterator[Report]:
    if name == "endurance":
        for setting in given.settings:
            plan = endurance.Plan(setting, given.seed, given.writes, given.soak, given.rest)
            yield endurance.run(plan, server)
    elif name == "upgrade":
        yield upgrade.run(server.url("postgres"), given.seed, given.times, given.source)
    else:
        yield run(CELLS[name], server, given.seed, given.times)


if __name__ == "__main__":
    sys.exit(main())
