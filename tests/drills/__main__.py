"""The command: run drills, print one row for each, and fail when one of them does."""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.drills import patroni, upgrade
from tests.drills.drills import DRILLS, Drill, run
from tests.drills.stage import HEADINGS, NoPlace, row
from tests.support.nginx import NGINX
from tests.support.postgres import FaultyPostgres


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.drills",
        description="Inflict faults on the running service while clients use it.",
    )
    names = [*DRILLS, patroni.NAME, upgrade.NAME]
    parser.add_argument("drills", nargs="*", choices=[[], *names], metavar="DRILL", help=", ".join(names))
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000, help="repeats a run")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--short", action="store_true", help="a few faults each, as the tests do (default)")
    length.add_argument("--long", action="store_true", help="as many faults as a claim needs: hours")
    length.add_argument("--times", type=int, help="so many faults each")
    return parser.parse_args()


def main() -> int:
    """Return the exit status: 0 when every drill has passed."""
    arguments = _arguments()
    chosen = arguments.drills or [*DRILLS, patroni.NAME, upgrade.NAME]
    if upgrade.NAME in chosen and NGINX is None:
        sys.exit("nginx is not installed; as root, tests/install_system_packages.sh installs it")
    problems = []
    others = [name for name in chosen if name != patroni.NAME]
    if others:
        problems += _on_one_server(others, arguments)
    if patroni.NAME in chosen:
        problems += _patroni(arguments)
    for problem in problems:
        print(problem, file=sys.stderr)
    return int(bool(problems))


def _on_one_server(chosen: list[str], arguments: argparse.Namespace) -> list[str]:
    problems = []
    with (
        tempfile.TemporaryDirectory(prefix="stackmgr-drills-") as folder,
        FaultyPostgres(Path(folder) / "data") as server,
    ):
        server.prepare()
        faults = [DRILLS[name] for name in chosen if name != upgrade.NAME]
        if faults:
            problems += _inflict(faults, server, arguments)
        if upgrade.NAME in chosen:
            problems += _upgrade(server, arguments)
    return problems


def _inflict(drills: list[Drill], server: FaultyPostgres, arguments: argparse.Namespace) -> list[str]:
    problems = []
    _print_headings(HEADINGS)
    for drill in drills:
        times = arguments.times or (drill.long if arguments.long else drill.short)
        try:
            report = run(drill, server, arguments.seed, times)
        except NoPlace as ex:
            print(f"{drill.name}: left out: {ex}", file=sys.stderr, flush=True)
            continue
        _print_row(row(report))
        problems += [f"{drill.name}: {problem}" for problem in report.contradictions() + report.delays()]
    return problems


def _upgrade(server: FaultyPostgres, arguments: argparse.Namespace) -> list[str]:
    times = arguments.times or (upgrade.LONG if arguments.long else upgrade.SHORT)
    report = upgrade.run(server.url(), arguments.seed, times)
    _print_headings(upgrade.HEADINGS)
    for phase in report.phases:
        _print_row(upgrade.row(phase))
    return [f"{upgrade.NAME}: {problem}" for problem in report.contradictions()]


def _patroni(arguments: argparse.Namespace) -> list[str]:
    times = arguments.times or (patroni.LONG if arguments.long else patroni.SHORT)
    try:
        report = patroni.run(arguments.seed, times)
    except NoPlace as ex:
        print(f"{patroni.NAME}: left out: {ex}", file=sys.stderr, flush=True)
        return []
    _print_headings(HEADINGS)
    _print_row(row(report))
    return [f"{patroni.NAME}: {problem}" for problem in report.contradictions() + report.delays()]


def _print_headings(headings: Sequence[str]) -> None:
    print(f"| {' | '.join(headings)} |\n|{'---|' * len(headings)}", flush=True)


def _print_row(cells: Sequence[str]) -> None:
    print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
