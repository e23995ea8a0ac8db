"""The page on growth: its commands archive old revisions and put them back."""

import csv
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from stackmgr import paths
from tests.commands.saved import STACK

ROOT = paths.directory("deploy").parent
REVISIONS = b"SELECT * FROM stackmgr.stack_revisions ORDER BY manager_id, stack_id, revision_number"


@pytest.fixture
def shell(own_url: str, binaries: Path, tmp_path: Path):
    """Return a function that runs a line of the page as it is printed, but for the name of the database."""
    given = conninfo_to_dict(own_url)
    environ = {"PATH": f"{binaries}:{os.environ['PATH']}", "PGHOST": given["host"], "PGUSER": given["user"]}
    environ |= {"PGPORT": str(given.get("port", "5432")), "PGTZ": "Asia/Tokyo"}
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")

    def run(line: str) -> subprocess.CompletedProcess[str]:
        command = line.replace("-d stackmgr ", f"-d {given['dbname']} ")
        return subprocess.run(
            ["/bin/sh", "-euc", command],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def lines() -> list[str]:
    return re.findall(r"^ {4}(psql .*)$", (ROOT / "deploy" / "GROWTH.md").read_text(), re.MULTILINE)


def revisions(url: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute(REVISIONS).fetchall()


def test_the_ages_of_the_tables_are_listed(shell):
    ran = shell(lines()[0])
    assert ran.returncode == 0, ran.stderr
    assert re.search(r"^ stack_revisions +\| +\d+ \| +\d+$", ran.stdout, re.MULTILINE)


def test_old_revisions_move_into_a_file_and_back(command, own_url, shell, tmp_path):
    _, archive, restore, _ = lines()
    before = revisions(own_url)
    ran = shell(archive.replace("2026-01-01", "2026-11-21T22:10:55Z"))
    assert ran.returncode == 0, ran.stderr
    kept = [row[2] for row in revisions(own_url) if str(row[1]) == STACK]
    assert kept == [1, 4]
    with (tmp_path / "revisions-2025.csv").open() as file:
        moved = list(csv.DictReader(file))
    assert [(row["stack_id"], row["revision_number"]) for row in moved] == [(STACK, "2"), (STACK, "3")]
    assert command("audit").status == 3
    assert command("audit", "--archived").status == 0
    history = command("stacks", "history", STACK)
    assert history.status == 0
    assert len(history.out.splitlines()) == 3
    ran = shell(restore)
    assert ran.returncode == 0, ran.stderr
    assert revisions(own_url) == before
    assert command("audit").status == 0


def test_a_file_that_cannot_be_written_deletes_nothing(own_url, shell):
    before = revisions(own_url)
    archive = lines()[1].replace("2026-01-01", "2027-01-01").replace("revisions-2025.csv", "none/there.csv")
    assert shell(archive).returncode != 0
    assert revisions(own_url) == before
