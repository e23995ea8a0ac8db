"""The command: one run for each setting, a row for each, and what its processes used."""

import argparse
import sys
import tempfile

from tests.endurance.run import SETTINGS, Plan, Report, run
from tests.support.memory import memory

_HEADINGS = (
    *(
        "setting",
        "seed",
        "faults",
        "acknowledged under faults",
        "in the soak",
        "failed in the soak",
        "seconds of faults",
    ),
    *(
        "creates",
        "replays",
        "updates",
        "500",
        "no response",
        "of both took place",
        "rejected",
        "not connected",
    ),
    *("lost", "twice", "other violations", "slowest response", "longest gap"),
)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.endurance",
        description="Write under mixed faults, compare each write with the database, watch the processes.",
    )
    parser.add_argument(
        "settings", nargs="*", choices=[[], *SETTINGS], metavar="SETTING", help=", ".join(SETTINGS)
    )
    parser.add_argument("--seed", type=int, default=1, help="of the first run; each further one adds 1")
    parser.add_argument("--writes", type=int, default=20_000, help="acknowledged under faults, in each run")
    parser.add_argument(
        "--soak", type=float, default=0, metavar="SECONDS", help="before them, without faults"
    )
    parser.add_argument(
        "--warm-up", type=float, default=60, metavar="SECONDS", help="of the soak, not sampled"
    )
    parser.add_argument(
        "--rest", type=float, default=3, metavar="SECONDS", help="between two faults, in the mean"
    )
    parser.add_argument(
        "--at-most", type=float, default=float("inf"), metavar="SECONDS", help="of faults, in each run"
    )
    parser.add_argument("--connections", type=int, default=96)
    return parser.parse_args()


def _row(report: Report) -> list[str]:
    outcomes = report.summary.outcomes
    rules = report.findings.violations
    lost, twice = rules["lost"], rules["twice"]
    kinds = ", ".join(f"{name} {count}" for name, count in sorted(report.faults.items()))
    return [
        report.plan.setting,
        str(report.plan.seed),
        f"{report.faults.total()} ({kinds})",
        *(str(report.writes), str(report.soak_writes), str(report.soak_failures), f"{report.seconds:.0f}"),
        *(str(outcomes[name]) for name in ("creates", "replays", "updates", "500", "no response")),
        *(str(report.findings.landed), str(outcomes["rejected"]), str(outcomes["not connected"])),
        *(str(lost), str(twice), str(rules.total() - lost - twice + outcomes["violations"])),
        *(f"{report.summary.slowest:.2f} s", f"{report.summary.longest_gap:.2f} s"),
    ]


def main() -> int:
    """Return the exit status: 0 when every run has passed."""
    arguments = _arguments()
    # Logs, data and standbys: a slow disk is not what is measured.
    tempfile.tempdir = memory()
    problems = []
    print(f"| {' | '.join(_HEADINGS)} |\n|{'---|' * len(_HEADINGS)}", flush=True)
    for number, setting in enumerate(arguments.settings or SETTINGS):
        plan = Plan(
            setting=setting,
            seed=arguments.seed + number,
            writes=arguments.writes,
            soak_seconds=arguments.soak,
            warm_up=arguments.warm_up,
            rest=arguments.rest,
            at_most=arguments.at_most,
            connections=arguments.connections,
        )
        report = run(plan)
        print(f"| {' | '.join(_row(report))} |", flush=True)
        for line in report.samples.table():
            print(f"{setting}: {line}", flush=True)
        problems += [f"{setting}: {problem}" for problem in report.problems()]
    for problem in problems:
        print(problem, file=sys.stderr)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
