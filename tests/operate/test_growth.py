"""The page on growth: its commands archive old revisions and put them back."""

import os
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from stackmgr import paths
from tests.operate.saved import MANAGER_ID, OTHER_MANAGER_ID, STACK
from tests.support.waiting import eventually

ROOT = paths.directory("deploy").parent
# Stands for `sync` from its call number CALL on.
FAILING_SYNC = """#!/bin/sh
echo >>calls
[ $(wc -l <calls) -lt CALL ] && exec /bin/sync "$@"
END
"""
KILLS_PSQL = "read -r _ _ _ psql _ </proc/$PPID/stat; kill -9 $psql; exit 1"
REVISIONS = b"SELECT * FROM stackmgr.stack_revisions ORDER BY manager_id, stack_id, revision_number"


@pytest.fixture
def shell(own_url: str, binaries: Path, tmp_path: Path):
    """Return a function that runs a line of the page as it is printed, but for the name of the database."""
    given = conninfo_to_dict(own_url)
    environ = {"PATH": f"{tmp_path}:{binaries}:{os.environ['PATH']}"}
    environ |= {"PGHOST": given["host"], "PGUSER": given["user"]}
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


def archived(folder: Path) -> list[tuple[str, str]]:
    """Return the stack and the number of each revision in the file."""
    _, *rows = (folder / "revisions-2025.tsv").read_text().splitlines()
    return [(row.split("\t")[1], row.split("\t")[2]) for row in rows]


def test_old_revisions_move_into_a_file_and_back(own_url, shell, tmp_path):
    _, archive, audit_archived, restore, audit, _ = lines()
    before = revisions(own_url)
    ran = shell(archive.replace("2026-01-01", "2026-11-21T22:10:55Z"))
    assert ran.returncode == 0, ran.stderr
    kept = [row[2] for row in revisions(own_url) if str(row[1]) == STACK]
    assert kept == [1, 4]
    assert archived(tmp_path) == [(STACK, "2"), (STACK, "3")]
    assert shell(audit).returncode == 3
    assert shell(audit_archived).returncode == 0
    ran = shell(restore)
    assert ran.returncode == 0, ran.stderr
    assert revisions(own_url) == before
    assert shell(audit).returncode == 0


@pytest.mark.parametrize("moment", ["before the file is written", "before its rows are deleted"])
def test_the_revisions_of_a_held_manager_stay(command, own_url, shell, tmp_path, moment):
    before = revisions(own_url)
    archive = lines()[1].replace("2026-01-01", "2027-01-01")
    is_written = moment != "before the file is written"
    if is_written:
        (tmp_path / "sync").write_text(FAILING_SYNC.replace("CALL", "2").replace("END", "exit 1"))
        (tmp_path / "sync").chmod(0o755)
        assert shell(archive).returncode == 3
        (tmp_path / "sync").unlink()
    assert command("managers", "hold", MANAGER_ID, "--reason", "case 17").status == 0
    ran = shell(archive)
    assert ran.returncode == 0, ran.stderr
    assert f"held managers, whose revisions stay in the table: {MANAGER_ID}\n" in ran.stderr
    assert len(archived(tmp_path)) == (2 if is_written else 0)
    assert revisions(own_url) == before
    assert command("managers", "release", MANAGER_ID).status == 0
    (tmp_path / "revisions-2025.tsv").unlink()
    assert shell(archive).returncode == 0
    assert len(revisions(own_url)) == len(before) - 2


def test_a_hold_that_begins_before_the_deletion_is_waited_for(own_url, shell, tmp_path):
    before = revisions(own_url)
    waiting = "SELECT FROM pg_locks WHERE NOT granted AND relation = 'stackmgr.manager_holds'::regclass"
    with psycopg.connect(own_url) as holding, ThreadPoolExecutor() as threads:
        holding.execute(
            "INSERT INTO stackmgr.manager_holds (manager_id, reason) VALUES (%s, 'case 17')", [MANAGER_ID]
        )
        archiving = threads.submit(shell, lines()[1].replace("2026-01-01", "2027-01-01"))
        eventually(lambda: holding.execute(waiting).fetchone() is not None)
        holding.commit()
        assert archiving.result(60).returncode == 0
    assert len(archived(tmp_path)) == 2
    assert revisions(own_url) == before


def test_any_name_is_archived_and_put_back(own_url, shell):
    _, archive, _, restore, *_ = lines()
    with psycopg.connect(own_url) as connection:
        name = '\\N\t"é\n\\.\n,\r\\'
        connection.execute("UPDATE stackmgr.stack_revisions SET name = %s, request_id = ''", [name])
    before = revisions(own_url)
    for line in (archive.replace("2026-01-01", "2027-01-01"), restore):
        ran = shell(f"export LC_ALL=C PGCLIENTENCODING=LATIN1; {line}")
        assert ran.returncode == 0, ran.stderr
    assert revisions(own_url) == before


def test_a_manager_is_erased_from_archived_files(shell, tmp_path):
    [erase] = re.findall(r"^ {4}(sed .*)$", (ROOT / "deploy" / "GROWTH.md").read_text(), re.MULTILINE)
    assert shell(lines()[1].replace("2026-01-01", "2027-01-01")).returncode == 0
    assert len(archived(tmp_path)) == 2
    for manager_id, left in ((OTHER_MANAGER_ID, 2), (MANAGER_ID, 0)):
        assert shell(f"MANAGER_ID={manager_id}; {erase}").returncode == 0
        assert len(archived(tmp_path)) == left


@pytest.mark.parametrize("end", ["exit 1", KILLS_PSQL], ids=["sync fails", "psql is killed"])
@pytest.mark.parametrize("call", [1, 2])
def test_nothing_is_deleted_before_the_file_is_on_its_disk(own_url, shell, tmp_path, call, end):
    before = revisions(own_url)
    archive = lines()[1].replace("2026-01-01", "2026-11-21T22:10:55Z")
    sync = tmp_path / "sync"
    sync.write_text(FAILING_SYNC.replace("CALL", str(call)).replace("END", end))
    sync.chmod(0o755)
    assert shell(archive).returncode != 0
    assert revisions(own_url) == before
    sync.unlink()
    ran = shell(archive)
    assert ran.returncode == 0, ran.stderr
    assert archived(tmp_path) == [(STACK, "2"), (STACK, "3")]
    assert len(revisions(own_url)) == len(before) - 2
    ran = shell(archive)
    assert "revisions in the file: 2, deleted now: 0" in ran.stderr
    assert archived(tmp_path) == [(STACK, "2"), (STACK, "3")]


@pytest.mark.parametrize(("of_file", "changed"), [("Growth", "growth"), ("\t3\t", "\t4\t")])
def test_a_file_that_differs_from_the_table_deletes_nothing(own_url, shell, tmp_path, of_file, changed):
    _, archive, _, restore, *_ = lines()
    before = revisions(own_url)
    archive = archive.replace("2026-01-01", "2026-11-21T22:10:55Z")
    for line in (archive, restore):
        assert shell(line).returncode == 0
    file = tmp_path / "revisions-2025.tsv"
    file.write_text(file.read_text().replace(of_file, changed))
    ran = shell(archive)
    assert ran.returncode != 0
    assert "the file differs from the table" in ran.stderr
    assert revisions(own_url) == before


@pytest.mark.parametrize(
    ("limit", "file"), [("", "none/there.tsv"), ("trap '' XFSZ; ulimit -f 0;", "revisions-2025.tsv")]
)
def test_a_file_that_cannot_be_written_deletes_nothing(own_url, shell, tmp_path, limit, file):
    before = revisions(own_url)
    archive = lines()[1].replace("2026-01-01", "2027-01-01").replace("revisions-2025.tsv", file)
    assert shell(f"{limit} {archive}").returncode != 0
    assert revisions(own_url) == before
    assert not (tmp_path / file).exists()
