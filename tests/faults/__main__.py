"""The command: run cells and drills, print one row for each, and fail if a bound does not hold."""

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from tests.faults import endurance, patroni, upgrade
from tests.faults.cell import Cell
from tests.faults.cells import CELLS
from tests.faults.report import HEADINGS, Report, row
from tests.faults.runner import run
from tests.faults.stage import NoPlace
from tests.support.memory import memory
from tests.support.postgres import FaultyPostgres, faulty_postgres

# Seconds after the end of the primary's key: etcd notices, the standby takes over, the service follows.
_TAKEOVER = 4.0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults",
        description="Inject faults into the running service while clients use it, and compare what they cost"
        " with the bound of each.  Without names: every cell, and every drill in a short form.",
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="cells, by the beginning of their names; endurance, upgrade, patroni",
    )
    parser.add_argument("--list", action="store_true", help="print the names")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000, help="repeats a run")
    parser.add_argument("--times", type=int, default=1, help="inject each fault so many times")
    upgrading = parser.add_argument_group("upgrade")
    upgrading.add_argument(
        "--from",
        dest="source",
        type=Path,
        metavar="FOLDER",
        help="a checkout of the old release; by default this one without a new migration",
    )
    group = parser.add_argument_group("endurance")
    settings = [*endurance.SETTINGS]
    group.add_argument(
        "--settings",
        nargs="+",
        choices=settings,
        default=settings,
        metavar="SETTING",
        help=f"of {', '.join(settings)}; each by default",
    )
    group.add_argument("--writes", type=int, default=4000, help="acknowledged under faults, in each setting")
    group.add_argument(
        "--soak", type=float, default=0.0, metavar="SECONDS", help="before them, without faults"
    )
    group.add_argument(
        "--rest", type=float, default=0.5, metavar="SECONDS", help="between two faults, in the mean"
    )
    return parser.parse_args()


def main() -> int:
    """Return the exit status: 0 if every bound holds."""
    arguments = _arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # or what it has started would go on
    if arguments.list:
        print("\n".join([*CELLS, *_DRILLS]))
        return 0
    tempfile.tempdir = memory()  # logs and data: a slow disk is not what is measured
    names = tuple(name for name in arguments.names if name not in _DRILLS)
    for name in names:
        if not any(each.startswith(name) for each in CELLS):
            sys.exit(f"there is no cell {name}; --list prints them")
    cells = [cell for name, cell in CELLS.items() if not arguments.names or name.startswith(names or "\0")]
    print(f"seed {arguments.seed}\n")
    _print_headings(HEADINGS)
    with faulty_postgres() as server:
        work = {cell.name: partial(_cell, cell, server, arguments) for cell in cells}
        work |= {
            name: partial(drill, server, arguments)
            for name, drill in _DRILLS.items()
            if name in arguments.names or not arguments.names
        }
        problems = [f"{name}: {problem}" for name, act in work.items() for problem in _attempted(name, act)]
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


def _cell(cell: Cell, server: FaultyPostgres, arguments: argparse.Namespace) -> list[str]:
    return _print_report(run(cell, server, arguments.seed, arguments.times))


def _endurance(server: FaultyPostgres, arguments: argparse.Namespace) -> list[str]:
    problems = []
    for setting in arguments.settings:
        plan = endurance.Plan(
            setting=setting,
            seed=arguments.seed,
            writes=arguments.writes,
            soak_seconds=arguments.soak,
            rest=arguments.rest,
        )
        report, samples = endurance.run(plan, server)
        problems += _print_report(report)
        for line in samples.lines():
            print(f"{setting}: {line}", flush=True)
    return problems


def _upgrade(server: FaultyPostgres, arguments: argparse.Namespace) -> list[str]:
    report = upgrade.run(server.url("postgres"), arguments.seed, arguments.times, arguments.source)
    print()
    _print_headings(upgrade.HEADINGS)
    for phase in report.phases:
        _print_row(upgrade.row(phase))
    return report.contradictions()


def _patroni(_: FaultyPostgres, arguments: argparse.Namespace) -> list[str]:
    report, gaps = patroni.run(arguments.seed, arguments.times)
    print()
    _print_headings(HEADINGS)
    problems = _print_report(report)
    promised = patroni.seconds("ttl") + _TAKEOVER
    print()
    _print_headings(("kill", "the standby took over after", "no write acknowledged for"))
    for number, gap in enumerate(gaps, 1):
        _print_row((str(number), f"{gap.failover:.1f} s", f"{gap.seconds:.1f} s"))
        if gap.seconds > promised:
            problems.append(f"no write was acknowledged for {gap.seconds:.1f} s")
    return problems


_DRILLS = {"endurance": _endurance, "upgrade": _upgrade, "patroni": _patroni}


def _print_report(report: Report) -> list[str]:
    _print_row(row(report))
    return report.contradictions() + report.delays()


def _print_headings(headings: Sequence[str]) -> None:
    print(f"| {' | '.join(headings)} |\n|{'---|' * len(headings)}", flush=True)


def _print_row(cells: Sequence[str]) -> None:
    print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
