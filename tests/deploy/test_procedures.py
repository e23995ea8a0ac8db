"""Procedures of the pages, typed again, cut after each step and begun anew, or with a variable unset.

A row for each procedure, in a folder with a space in its name: no row that was saved is lost, doubled or
changed. `pytest -s` prints the outcomes. Elsewhere: recovery to a point in time (test_recovery.py), dump and
restore (test_postgresql.py), installation and upgrade (test_runbook.py). Citus has no server here.
"""

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import pytest

from stackmgr import paths
from tests.deploy.dba import Dba, save, sql
from tests.deploy.runbook import lines
from tests.operate.saved import MANAGER_ID, OTHER_MANAGER
from tests.support.waiting import eventually

TABLES = ("managers", "stacks", "stack_revisions", "creation_receipts", "api_keys")
DEPLOY = paths.directory("deploy")
# Page and section.
PROCEDURES = (
    ("DATABASE.md", "Recovery of one manager"),
    ("DATABASE.md", "Parallel dump and restore"),
    ("DATABASE.md", "Logical replication"),
    ("GROWTH.md", "Archive old revisions"),
)


class Place:
    """A source, a target, and a copy of the source; each way begins with the same rows."""

    def __init__(self, shell: Dba) -> None:
        self.shell = shell
        source, target = shell.make("source"), shell.make("target")
        self.url, self.admin = shell.begin(source), shell.url(source, "postgres")
        save(self.url)
        for name in ("saved", "copy"):
            sql(self.admin, f"CREATE DATABASE {name} TEMPLATE stackmgr")
        shell.run(f"pg_ctl -D '{target}' -w start")
        shell.run(f"PGHOST='{target}.sock' psql -X -q -d postgres -f deploy/postgresql/roles.sql")
        self.target = shell.url(target, "postgres")
        self.variables = {
            "MANAGER_ID": MANAGER_ID,
            "COPY": shell.url(source, "copy"),
            "SOURCE": f"postgresql://postgres@/stackmgr?host={quote(source, safe='')}.sock",
            "TARGET": shell.url(target),
        }

    def rows(self, url: str) -> list[str]:
        return sorted(
            f"{table} {row}"
            for table in TABLES
            for (row,) in sql(url, f"SELECT saved::text FROM stackmgr.{table} AS saved")
        )

    def reset(self) -> None:
        target = self.variables["TARGET"]
        for (name,) in sql(self.target, "SELECT subname FROM pg_subscription"):
            for change in ("ALTER SUBSCRIPTION {} DISABLE", "ALTER SUBSCRIPTION {} SET (slot_name = NONE)"):
                sql(target, change.format(name))
            sql(target, f"DROP SUBSCRIPTION {name}")
        query = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT active"
        eventually(lambda: sql(self.admin, query) or not sql(self.admin, "TABLE pg_replication_slots"))
        for url, made in ((self.admin, "saved"), (self.target, "template0")):
            for name in ("stackmgr", "stackmgr_parallel"):
                sql(url, f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
            sql(url, f"CREATE DATABASE stackmgr TEMPLATE {made}")
        self.shell.run("rm -rf recovered stackmgr.dir revisions-*.tsv*")


@pytest.fixture(scope="module")
def place(binaries: Path) -> Iterator[Place]:
    with closing(Dba(binaries, prefix="stackmgr dba ")) as shell:
        yield Place(shell)


def ways(steps: list[str]) -> Iterator[tuple[str, list[list[str]], str]]:
    """Yield of each way its name, the steps of each attempt, and the variable that is unset."""
    yield "to the end, and again", [steps, steps], ""
    for number in range(1, len(steps)):
        yield f"cut after step {number}, begun again", [steps[:number], steps], ""
    for name in sorted({*re.findall(r"\$\{?([A-Z_]+)", "".join(steps))}):
        yield f"without {name}", [steps], name


@pytest.mark.parametrize(("page", "section"), PROCEDURES)
def test_no_way_through_a_procedure_loses_a_row(place, page, section):
    # The saved revisions are of 2026.
    steps = [line.replace("=2026-", "=2027-") for line in lines(section, DEPLOY / page)]
    for way, attempts, unset in ways(steps):
        place.reset()
        before = place.rows(place.url)
        if page == "GROWTH.md":  # an erased manager's
            place.variables["MANAGER_ID"] = OTHER_MANAGER
        variables = {name: text for name, text in place.variables.items() if name != unset}
        outcomes = []
        for attempt in attempts:
            failed = place.shell.type("\n".join(attempt), **variables)
            outcomes.append("; ".join(line[:40] for line in failed) or "complete")
        print(f"| {page} {section} | {way} | {' / '.join(outcomes)} |")
        assert place.rows(place.url) == before, way
        if unset:
            assert outcomes != ["complete"], way
        else:
            assert outcomes[0] == "complete", way
