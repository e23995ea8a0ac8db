"""The passes of `tests/run`, each a pytest of its own."""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

TESTS = Path(__file__).parent
LONGEST_SECONDS = 3600  # of a pass: what is slow has its limits within the tests
# What only `tests/run --all` runs: what the service's own code cannot break, or what takes minutes.
EXTENDED = (
    "tests/clients", "tests/deploy/test_database_page.py", "tests/deploy/test_dev.py",
    "tests/deploy/test_image.py", "tests/deploy/test_machines.py", "tests/deploy/test_packaging.py",
    "tests/deploy/test_page.py", "tests/deploy/test_postgresql.py", "tests/deploy/test_procedures.py",
    "tests/deploy/test_recovery.py", "tests/deploy/test_reference.py", "tests/faults", "tests/measure",
)  # fmt: skip
POOLED = tuple(f"tests/contract/test_{name}.py" for name in ("create", "idempotency", "update", "list"))
DAMAGED = tuple(f"tests/database/test_{name}.py" for name in ("classification", "standby", "server_settings"))
# Tests whose results depend on the release of PostgreSQL.
ON_OLDEST = ("tests/sql", *POOLED, "tests/contract/test_routing.py", *DAMAGED)


@dataclass
class Pass:
    """One pytest: its *arguments* and environment, or why it is left out."""

    title: str
    arguments: Sequence[str]
    left_out: str = ""
    name: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)


def passes(*, everything: bool) -> Iterator[Pass]:
    # Two processes more than processors, because many tests wait for a server to start.
    processes = min((os.cpu_count() or 1) + 2, 6)
    parallel = ("-n", str(processes), "--dist", "loadfile", "--no-loadscope-reorder")
    extended = () if everything else tuple(f"--ignore={place}" for place in EXTENDED)
    yield Pass(f"tests in {processes} processes", (*parallel, *extended))
    if not everything:
        return
    pooler = shutil.which("pgbouncer") or ""
    missing = "" if pooler else "there is no pgbouncer"
    yield Pass("tests through PgBouncer", POOLED, missing, "pgbouncer", {"STACKMGR_TEST_PGBOUNCER": pooler})
    citus = os.environ.get("CITUS_BINARIES", "")
    missing = "" if citus else "CITUS_BINARIES is not set: the programs of a server with Citus"
    yield Pass("tests on Citus", ("tests/contract",), missing, "citus", {"STACKMGR_TEST_CITUS": citus})
    other = os.environ.get("POSTGRES_BINARIES", "/usr/lib/postgresql/15/bin")
    is_there, title = Path(other, "initdb").exists(), f"tests on the PostgreSQL of {other}"
    missing = "" if is_there else f"there is no PostgreSQL in {other}: set POSTGRES_BINARIES"
    yield Pass(title, (*parallel, *ON_OLDEST), missing, "oldest", {"STACKMGR_TEST_POSTGRES": other})


def run(part: Pass) -> tuple[bool, str]:
    with tempfile.TemporaryDirectory(prefix="stackmgr-") as folder:
        report = Path(folder, "report.xml")  # which pytest writes at its end
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-rfEs", f"--junitxml={report}", *part.arguments],
            cwd=TESTS.parent,
            env={**os.environ, **part.variables},
        )
        try:
            status = process.wait(LONGEST_SECONDS)
        except subprocess.TimeoutExpired:
            process.terminate()  # on which pytest stops its servers
            status = process.wait(60) or 1
        if not report.exists():
            return False, "pytest did not come to its end"
        counts = r'errors="(\d+)" failures="(\d+)" skipped="(\d+)" tests="(\d+)"'
        found = re.search(counts, report.read_text())
    errors, failed, skipped, tests = map(int, found.groups())
    passed = tests - errors - failed - skipped
    counts = f"{passed} passed, {failed} failed, {errors} errors, {skipped} skipped"
    return status in (0, 5), counts  # 5: no test was selected


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tests/run", description="Run the tests in passes.")
    parser.add_argument("--all", action="store_true", help="also what takes minutes or needs more programs")
    parser.add_argument(
        "--require", action="append", default=[], choices=("pgbouncer", "citus", "oldest"),
        help="fail if this pass is left out",
    )  # fmt: skip
    given = parser.parse_args(arguments)
    lines, has_failed = [], False
    for part in passes(everything=given.all):
        if part.left_out:
            is_good, outcome = part.name not in given.require, f"left out, {part.left_out}"
        else:
            print(f"{time.strftime('%T')} {part.title}", flush=True)
            is_good, outcome = run(part)
        lines.append(f"{'ok' if is_good else 'FAILED'} {part.title}: {outcome}")
        has_failed |= not is_good
    if not given.all:
        lines.append("left out what takes minutes or needs more programs: tests/run --all")
    print(*lines, sep="\n")
    return int(has_failed)


if __name__ == "__main__":
    sys.exit(main())
