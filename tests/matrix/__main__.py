"""The command: run cells, print one row for each, and fail if a bound does not hold."""

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.matrix import patroni, upgrade
from tests.matrix.cell import Cell
from tests.matrix.cells import CELLS, EMPTY, MIXED
from tests.matrix.report import HEADINGS, Report, row
from tests.matrix.runner import run
from tests.matrix.stage import NoPlace
from tests.support.memory import memory
from tests.support.nginx import NGINX
from tests.support.postgres import FaultyPostgres

# Seconds after the end of the primary's key: etcd notices, the standby takes over, the service follows.
_TAKEOVER = 4.0
_OTHERS = (MIXED.name, patroni.NAME, upgrade.NAME)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.matrix",
        description="Inject faults into the running service while clients use it, and compare what they cost"
        " with the bound of each.  Without names: every cell, once.",
    )
    parser.add_argument(
        "cells",
        nargs="*",
        metavar="CELL",
        help="names of cells, or their beginnings; or mixed, patroni, upgrade",
    )
    parser.add_argument(
        "--list", action="store_true", help="print the names, and the empty cells with the reasons"
    )
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000, help="repeats a run")
    parser.add_argument("--short", action="store_true", help="only the cells that the tests run")
    parser.add_argument("--times", type=int, default=0, help="inject each fault so many times")
    parser.add_argument(
        "--from",
        dest="source",
        type=Path,
        metavar="FOLDER",
        help="upgrade: a checkout of the old release; by default this one without a new migration",
    )
    return parser.parse_args()


def main() -> int:
    """Return the exit status: 0 if every bound holds."""
    arguments = _arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # or what it has started would go on
    if arguments.list:
        print("\n".join([*CELLS, *_OTHERS]))
        print("\n".join(f"{what}: {why}" for what, why in EMPTY.items()))
        return 0
    others = [name for name in _OTHERS if name in arguments.cells]
    cells = _chosen([name for name in arguments.cells if name not in _OTHERS], arguments)
    if MIXED.name in others:
        cells.append(MIXED)
    problems = _run(cells, arguments) if cells else []
    if upgrade.NAME in others:
        problems += _upgrade(arguments)
    if patroni.NAME in others:
        problems += _patroni(arguments)
    for problem in problems:
        print(problem, file=sys.stderr)
    return int(bool(problems))


def _chosen(names: list[str], arguments: argparse.Namespace) -> list[Cell]:
    if not names:
        return (
            [] if arguments.cells else [cell for cell in CELLS.values() if cell.short or not arguments.short]
        )
    for name in names:
        if not any(each.startswith(name) for each in CELLS):
            sys.exit(f"there is no cell {name}; --list prints them")
    return [cell for cell in CELLS.values() if cell.name.startswith(tuple(names))]


def _run(cells: list[Cell], arguments: argparse.Namespace) -> list[str]:
    problems = []
    print(f"seed {arguments.seed}\n")
    _print_headings(HEADINGS)
    with (
        tempfile.TemporaryDirectory(prefix="stackmgr-matrix-", dir=memory()) as folder,
        FaultyPostgres(Path(folder) / "data") as server,
    ):
        server.prepare()
        for cell in cells:
            try:
                problems += _print_report(run(cell, server, arguments.seed, arguments.times or 1))
            except NoPlace as ex:
                print(f"{cell.name}: left out: {ex}", file=sys.stderr, flush=True)
            except AssertionError as ex:
                print(f"{cell.name}: {ex}", file=sys.stderr, flush=True)
                problems.append(f"{cell.name}: {ex}")
    return problems


def _print_report(report: Report) -> list[str]:
    _print_row(row(report))
    return [f"{report.name}: {problem}" for problem in report.contradictions() + report.delays()]


def _upgrade(arguments: argparse.Namespace) -> list[str]:
    if NGINX is None:
        sys.exit("nginx is not installed; as root, tests/install_system_packages.sh installs it")
    with (
        tempfile.TemporaryDirectory(prefix="stackmgr-matrix-") as folder,
        FaultyPostgres(Path(folder) / "data") as server,
    ):
        report = upgrade.run(server.url("postgres"), arguments.seed, arguments.times or 1, arguments.source)
    _print_headings(upgrade.HEADINGS)
    for phase in report.phases:
        _print_row(upgrade.row(phase))
    return [f"{upgrade.NAME}: {problem}" for problem in report.contradictions()]


def _patroni(arguments: argparse.Namespace) -> list[str]:
    try:
        report, gaps = patroni.run(arguments.seed, arguments.times or 1)
    except NoPlace as ex:
        print(f"{patroni.NAME}: left out: {ex}", file=sys.stderr, flush=True)
        return []
    _print_headings(HEADINGS)
    problems = _print_report(report)
    promised = patroni.seconds("ttl") + _TAKEOVER
    print()
    _print_headings(("kill", "the standby took over after", "no write acknowledged for"))
    for number, gap in enumerate(gaps, 1):
        _print_row((str(number), f"{gap.failover:.1f} s", f"{gap.seconds:.1f} s"))
        if gap.seconds > promised:
            problems.append(f"{patroni.NAME}: no write was acknowledged for {gap.seconds:.1f} s")
    return problems


def _print_headings(headings: Sequence[str]) -> None:
    print(f"| {' | '.join(headings)} |\n|{'---|' * len(headings)}", flush=True)


def _print_row(cells: Sequence[str]) -> None:
    print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
