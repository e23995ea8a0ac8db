"""What `tests/run` calls: passes, each a pytest that loads this module as a plugin.

The plugin reports to a file, so that a process that dies takes no result with it.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parent
REPORTS = "STACKMGR_SUITE_REPORTS"  # the file to which the plugin reports
PROGRESS_SECONDS = 30
# A pass in which no test ends for so long is stopped: the limits of what may be slow are within the tests.
SILENT_SECONDS = 900

# What only `tests/run --all` runs: what the service's own code cannot break, or what takes minutes.
EXTENDED = (
    "tests/clients",
    "tests/deploy/test_bootstrap.py",
    "tests/deploy/test_dev.py",
    "tests/deploy/test_embedded.py",
    "tests/deploy/test_image.py",
    "tests/deploy/test_packaging.py",
    "tests/deploy/test_page.py",
    "tests/deploy/test_postgresql.py",
    "tests/deploy/test_reference.py",
    "tests/deploy/test_runbook.py",
    "tests/faults",
    "tests/measure",
)
POOLED = tuple(f"tests/contract/test_{name}.py" for name in ("create", "idempotency", "update", "list"))
DAMAGED = tuple(f"tests/database/test_{name}.py" for name in ("classification", "standby", "server_settings"))
# What another PostgreSQL could answer differently.
ON_OLDEST = ("tests/sql", *POOLED, "tests/contract/test_isolation.py", *DAMAGED)


@dataclass
class Pass:
    """One pytest: its *arguments* and environment, or why it is left out."""

    title: str
    arguments: Sequence[str]
    left_out: str = ""
    name: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Outcome:
    """What the reports of one pass say."""

    title: str
    collected: set[str] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

    def read(self, line: str) -> None:
        report = json.loads(line)
        if "collected" in report:
            self.collected.update(report["collected"])
            return
        test, outcome, text = report["test"], report["outcome"], report["text"]
        if outcome == "failed":
            # A test that ends its process is repeated by the next process.
            if test not in self.failed:
                print(f"\nFAILED {test}\n{text}", flush=True)
            self.failed.setdefault(test, text)
        elif outcome == "skipped":
            self.skipped[test] = text
        if report["ended"]:
            self.ended.add(test)

    def counts(self) -> Counter[str]:
        failed, skipped = self.failed.keys(), self.skipped.keys()
        return Counter(
            passed=len(self.ended - failed - skipped),
            failed=len(failed),
            skipped=len(skipped - failed),
            never_ran=len(self.collected - self.ended - failed),
        )


class Reporter:
    """The plugin: appends what pytest reports to a file, one JSON document a line."""

    def __init__(self, path: str) -> None:
        self._file = Path(path).open("a", encoding="utf-8", buffering=1)  # noqa: SIM115 - open until the process ends

    def _write(self, **report: Any) -> None:
        self._file.write(json.dumps(report) + "\n")

    def pytest_collection_finish(self, session: Any) -> None:
        self._write(collected=[item.nodeid for item in session.items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: Sequence[str]) -> None:
        self._write(collected=list(ids))

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self._write(test=report.nodeid, outcome="failed", text=report.longreprtext, ended=True)

    def pytest_runtest_logreport(self, report: Any) -> None:
        text = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
        if report.outcome == "failed":
            sections = (f"{title}:\n{body}" for title, body in report.sections)
            text = "\n".join([report.longreprtext, *sections])
        # A process that dies reports its test once, in the phase "???".
        ended = report.when not in ("setup", "call")
        self._write(test=report.nodeid, outcome=report.outcome, text=text, ended=ended)


def pytest_configure(config: Any) -> None:
    path = os.environ.get(REPORTS)
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Reporter(path))


def passes(*, everything: bool) -> Iterator[Pass]:
    """Yield the passes on this machine, and those that it has no programs for."""
    # One process more than processors, because many tests wait for a server to start.
    processes = min((os.cpu_count() or 1) + 1, 4)
    parallel = ("-n", str(processes), "--dist", "loadfile", "--no-loadscope-reorder")
    extended = () if everything else tuple(f"--ignore={place}" for place in EXTENDED)
    yield Pass(f"tests in {processes} processes", ("-m", "not serial", *parallel, *extended))
    yield Pass("tests that run alone", ("-m", "serial", *extended))
    if not everything:
        return
    pooler = shutil.which("pgbouncer") or ""
    yield Pass(
        "tests through PgBouncer",
        POOLED,
        "" if pooler else "there is no pgbouncer",
        "pgbouncer",
        {"STACKMGR_TEST_PGBOUNCER": pooler},
    )
    citus = os.environ.get("CITUS_BINARIES", "")
    yield Pass(
        "tests on Citus",
        ("tests/contract",),
        "" if citus else "CITUS_BINARIES is not set: the programs of a server with Citus",
        "citus",
        {"STACKMGR_TEST_CITUS": citus},
    )
    other = os.environ.get("POSTGRES_BINARIES", "/usr/lib/postgresql/15/bin")
    yield Pass(
        f"tests on the PostgreSQL of {other}",
        (*parallel, *ON_OLDEST),
        "" if Path(other, "initdb").exists() else f"there is no PostgreSQL in {other}: set POSTGRES_BINARIES",
        "oldest",
        {"STACKMGR_TEST_POSTGRES": other},
    )


def run(part: Pass, reports: Path) -> Outcome:
    """Run one pass, and print progress meanwhile."""
    outcome = Outcome(part.title)
    reports.touch()
    output = reports.with_suffix(".output")
    with output.open("wb") as said, reports.open(encoding="utf-8") as lines:
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *part.arguments, "-p", "tests.suite"],
            cwd=TESTS.parent,
            env={**os.environ, **part.variables, REPORTS: str(reports)},
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            _follow(process, lines, outcome)
        finally:
            _end(process)
    # 5: no test was selected.
    if process.returncode not in (0, 1, 5) or (process.returncode == 1 and not outcome.failed):
        print("\n".join(output.read_text(errors="replace").splitlines()[-40:]))
        outcome.errors.append(f"{part.title}: pytest ended with status {process.returncode}")
    if never_ran := outcome.collected - outcome.ended - outcome.failed.keys():
        count = f"{len(never_ran)} of {len(outcome.collected)} tests"
        outcome.errors.append(f"{part.title}: {count} never ran, {min(never_ran)} among them")
    print(f"{_now()} {part.title}: {summary([outcome])}", flush=True)
    return outcome


def _follow(process: "subprocess.Popen[bytes]", lines: Any, outcome: Outcome) -> None:
    shown = heard = time.monotonic()
    rest = ""
    while True:
        ended = process.poll() is not None
        rest += lines.read()
        *complete, rest = rest.split("\n")
        for line in complete:
            outcome.read(line)
        now = time.monotonic()
        heard = now if complete else heard
        if ended:
            return
        if now - heard > SILENT_SECONDS:
            outcome.errors.append(f"no test ended for {SILENT_SECONDS} s: the pass was stopped")
            return
        if now - shown > PROGRESS_SECONDS:
            shown = now
            print(f"{_now()} {len(outcome.ended)} of {len(outcome.collected)} tests", flush=True)
        time.sleep(0.2)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Stop a pass that has not ended: by SIGTERM, on which pytest stops its servers, then by SIGKILL."""
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def summary(outcomes: Sequence[Outcome]) -> str:
    counts = sum((outcome.counts() for outcome in outcomes), Counter())
    return (
        f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped, "
        f"{counts['never_ran']} not run"
    )


def _now() -> str:
    return time.strftime("%T")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tests/run", description="Run the tests in passes.")
    parser.add_argument("--all", action="store_true", help="also what takes minutes or needs more programs")
    parser.add_argument(
        "--require",
        action="append",
        default=[],
        choices=("pgbouncer", "citus", "oldest"),
        help="fail if this pass is left out",
    )
    given = parser.parse_args(arguments)
    everything = given.all
    outcomes, left_out, missing = [], [], []
    with tempfile.TemporaryDirectory(prefix="stackmgr-") as folder:
        for number, part in enumerate(passes(everything=everything)):
            if part.left_out:
                (missing if part.name in given.require else left_out).append(f"{part.title}: {part.left_out}")
                continue
            print(f"{_now()} {part.title}", flush=True)
            outcomes.append(run(part, Path(folder, f"{number}.jsonl")))
    reasons = Counter(reason for outcome in outcomes for reason in outcome.skipped.values())
    for reason, count in reasons.most_common():
        print(f"skipped {count}: {reason}")
    for line in left_out:
        print(f"left out {line}")
    if not everything:
        print("left out what takes minutes or needs more programs: tests/run --all")
    problems = [f"FAILED {test} ({outcome.title})" for outcome in outcomes for test in outcome.failed]
    problems += [f"ERROR {error}" for outcome in outcomes for error in outcome.errors]
    problems += [f"ERROR left out {line}" for line in missing]
    print(*problems, summary(outcomes), sep="\n")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
