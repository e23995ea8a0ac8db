"""The command: run drills, print one row for each, and fail when one of them does."""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.drills.drills import DRILLS, run
from tests.drills.stage import HEADINGS, row
from tests.faulty_postgres import FaultyPostgres


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.drills",
        description="Inflict faults on the running service while clients use it.",
    )
    parser.add_argument("drills", nargs="*", choices=[[], *DRILLS], metavar="DRILL", help=", ".join(DRILLS))
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000, help="repeats a run")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--short", action="store_true", help="a few faults each, as the tests do (default)")
    length.add_argument("--long", action="store_true", help="as many faults as a claim needs: hours")
    length.add_argument("--times", type=int, help="so many faults each")
    return parser.parse_args()


def main() -> int:
    """Return the exit status: 0 when every drill has passed."""
    arguments = _arguments()
    failed = False
    print(f"| {' | '.join(HEADINGS)} |\n|{'---|' * len(HEADINGS)}", flush=True)
    with (
        tempfile.TemporaryDirectory(prefix="stackmgr-drills-") as folder,
        FaultyPostgres(Path(folder) / "data") as server,
    ):
        server.prepare()
        for drill in [DRILLS[name] for name in arguments.drills] or DRILLS.values():
            times = arguments.times or (drill.long if arguments.long else drill.short)
            report = run(drill, server, arguments.seed, times)
            print(f"| {' | '.join(row(report))} |", flush=True)
            for problem in report.contradictions() + report.delays():
                failed = True
                print(f"{drill.name}: {problem}", file=sys.stderr, flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
