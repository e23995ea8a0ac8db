"""The page on growth: its commands archive old revisions and put them back."""

import itertools
import math
import operator
import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from stackmgr import paths
from tests.operate.saved import MANAGER_ID, OTHER_MANAGER_ID, STACK
from tests.support.processes import completed
from tests.support.programs import executable
from tests.support.waiting import eventually

DEPLOY = paths.directory("deploy")
PAGE = (DEPLOY / "GROWTH.md").read_text()
AGES, ARCHIVE, AUDIT_ARCHIVED, RESTORE, AUDIT = re.findall(r"^ {4}(psql .*)$", PAGE, re.MULTILINE)
[ERASE] = re.findall(r"^ {4}(sed .*)$", PAGE, re.MULTILINE)
ARCHIVE_ALL = ARCHIVE.replace("2026-01-01", "2027-01-01")
ARCHIVE_TWO = ARCHIVE.replace("2026-01-01", "2026-11-21T22:10:55Z")
TWO = [(STACK, "2"), (STACK, "3")]
# Stands for `sync` from its call number CALL on.
FAILING_SYNC = """#!/bin/sh
echo >>calls
[ $(wc -l <calls) -lt CALL ] && exec /bin/sync "$@"
END
"""
KILLS_PSQL = "read -r _ _ _ psql _ </proc/$PPID/stat; kill -9 $psql; exit 1"
REVISIONS = b"SELECT * FROM stackmgr.stack_revisions ORDER BY manager_id, stack_id, revision_number"


def all_revisions(url: str) -> str:
    copy = b"COPY stackmgr.stack_revisions TO STDOUT (HEADER)"
    with psycopg.connect(url, options="-c TimeZone=UTC") as other, other.cursor().copy(copy) as rows:
        return b"".join(rows).decode()


@pytest.fixture
def shell(own_saved_url: str, binaries: Path, tmp_path: Path):
    """Return a function that runs a line of the page as it is printed, but for the name of the database."""
    given = conninfo_to_dict(own_saved_url)
    environ = {"PATH": f"{tmp_path}:{binaries}:{os.environ['PATH']}"}
    environ |= {"PGHOST": given["host"], "PGUSER": given["user"]}
    environ |= {"PGPORT": str(given.get("port", "5432"))}
    users = itertools.cycle(({"PGTZ": "Asia/Tokyo", "PGDATESTYLE": "German"}, {"PGTZ": "UTC"}))
    (tmp_path / "deploy").symlink_to(DEPLOY)

    def run(line: str, status: int | None = 0) -> str:
        command = ["/bin/sh", "-euc", line.replace("-d stackmgr ", f"-d {given['dbname']} ")]
        ran = completed(command, cwd=tmp_path, env=environ | next(users))
        assert ran.returncode == status if status is not None else ran.returncode, ran.stderr
        return ran.stdout + ran.stderr

    return run


def revisions(url: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute(REVISIONS).fetchall()


def archived(folder: Path) -> list[tuple[str, str]]:
    _, *rows = (folder / "revisions-2025.tsv").read_text().splitlines()
    return [(row.split("\t")[1], row.split("\t")[2]) for row in rows]


def failing_sync(folder: Path, call: int, end: str) -> Path:
    return executable(folder / "sync", FAILING_SYNC.replace("CALL", str(call)).replace("END", end))


@pytest.mark.parametrize("missing", [" -v before=2026-01-01", " -v file=revisions-2025.tsv"])
def test_an_archive_without_time_or_file_writes_nothing(shell, tmp_path, missing):
    before = sorted(tmp_path.iterdir())
    assert "before when, into which file?" in shell(ARCHIVE.replace(missing, ""), status=3)
    assert sorted(tmp_path.iterdir()) == before


def test_the_capacity_is_that_of_the_measurement():
    """SCALING.md computes its rates and cores from the figures on the page of the measurements."""
    measured = (DEPLOY.parent / "tests/measure/README.md").read_text()
    page = (DEPLOY / "SCALING.md").read_text()
    rates, cost, *_ = re.findall(r"^\| stackmgr \|(.*)", measured, re.MULTILINE)
    found = [int(rate.replace(",", "")) for rate in re.findall(r"([\d,]+) \(", rates)]
    service, database = zip(*(map(int, each) for each in re.findall(r"(\d+) \+ (\d+)", cost)), strict=True)
    both = [sum(sides) for sides in zip(service, database, strict=True)]
    ratios = sorted(f"{rate * us / (0.84 * 2e6):.2f}" for rate, us in zip(found, both, strict=False))
    assert re.findall(r"Measured:\s([\d.]+) to ([\d.]+) of this", page) == [(ratios[0], ratios[-1])]
    for exponent, *cores in re.findall(r"^\| 10(.) \|.*\| (\d+), (\d+)(?:,| \|)", page, re.MULTILINE):
        peak = 10 ** "⁰¹²³⁴⁵⁶⁷".index(exponent) * 3 / 86400 / 0.84e6
        a_day = (100, 100, 0.1, 2)
        needed = [sum(map(operator.mul, a_day, side)) * peak for side in (service, database)]
        assert [str(math.ceil(each)) for each in needed] == cores


def test_old_revisions_move_into_a_file_and_back(own_saved_url, shell, tmp_path):
    before = revisions(own_saved_url)
    shell(ARCHIVE_TWO)
    assert [row[2] for row in revisions(own_saved_url) if str(row[1]) == STACK] == [1, 4]
    assert archived(tmp_path) == TWO
    shell(AUDIT, status=3)
    shell(AUDIT_ARCHIVED)
    with psycopg.connect(own_saved_url) as connection:
        connection.execute("ALTER TABLE stackmgr.stack_revisions ADD COLUMN of_a_later_release text")
    shell(RESTORE)
    assert revisions(own_saved_url) == [(*row, None) for row in before]
    shell(AUDIT)


@pytest.mark.parametrize("is_written", [False, True])
def test_the_revisions_of_a_held_manager_stay(command, own_saved_url, shell, tmp_path, is_written):
    before = revisions(own_saved_url)
    if is_written:
        path = failing_sync(tmp_path, 2, "exit 1")
        shell(ARCHIVE_ALL, status=3)
        path.unlink()
    assert command("managers", "hold", MANAGER_ID, "--reason", "case 17").status == 0
    assert f"held managers, whose revisions stay in the table: {MANAGER_ID}\n" in shell(ARCHIVE_ALL)
    assert len(archived(tmp_path)) == (2 if is_written else 0)
    assert revisions(own_saved_url) == before
    assert command("managers", "release", MANAGER_ID).status == 0
    (tmp_path / "revisions-2025.tsv").unlink()
    shell(ARCHIVE_ALL)
    assert len(revisions(own_saved_url)) == len(before) - 2


def test_archiving_waits_for_an_earlier_hold(own_saved_url, shell, tmp_path):
    before = revisions(own_saved_url)
    waiting = "SELECT FROM pg_locks WHERE NOT granted AND relation = 'stackmgr.manager_holds'::regclass"
    hold = "INSERT INTO stackmgr.manager_holds (manager_id, reason) VALUES (%s, 'case 17')"
    with psycopg.connect(own_saved_url) as holding, ThreadPoolExecutor() as threads:
        holding.execute(hold, [MANAGER_ID])
        # Of a login that suits requests.
        archiving = threads.submit(shell, f"export PGOPTIONS='-c statement_timeout=50ms'; {ARCHIVE_ALL}")
        eventually(lambda: holding.execute(waiting).fetchone() is not None)
        time.sleep(0.1)
        holding.commit()
        archiving.result(60)
    assert len(archived(tmp_path)) == 2
    assert revisions(own_saved_url) == before


def test_any_name_is_archived_and_put_back(own_saved_url, shell):
    with psycopg.connect(own_saved_url) as connection:
        name = '\\N\t"é\n\\.\n,\r\\'
        connection.execute("UPDATE stackmgr.stack_revisions SET name = %s, request_id = ''", [name])
    before = revisions(own_saved_url)
    for line in (ARCHIVE_ALL, RESTORE):
        shell(f"export LC_ALL=C PGCLIENTENCODING=LATIN1; {line}")
    assert revisions(own_saved_url) == before


def test_a_manager_is_erased_from_archived_files(shell, tmp_path):
    shell(ARCHIVE_ALL)
    for manager_id, left in ((OTHER_MANAGER_ID, 2), (MANAGER_ID, 0)):
        shell(f"MANAGER_ID={manager_id}; {ERASE}")
        assert len(archived(tmp_path)) == left


@pytest.mark.parametrize("end", ["exit 1", KILLS_PSQL], ids=["sync fails", "psql is killed"])
@pytest.mark.parametrize("call", [1, 2])
def test_file_is_synced_before_any_deletion(own_saved_url, shell, tmp_path, call, end):
    before = revisions(own_saved_url)
    path = failing_sync(tmp_path, call, end)
    shell(ARCHIVE_TWO, status=None)
    assert revisions(own_saved_url) == before
    path.unlink()
    shell(ARCHIVE_TWO)
    assert archived(tmp_path) == TWO
    assert len(revisions(own_saved_url)) == len(before) - 2
    assert "revisions in the file: 2, deleted now: 0" in shell(ARCHIVE_TWO)
    assert archived(tmp_path) == TWO


# The last one has every revision, the first and the current ones too.
@pytest.mark.parametrize(("of_file", "changed"), [("Growth", "growth"), ("\t3\t", "\t4\t"), (None, None)])
def test_other_file_deletes_nothing(own_saved_url, shell, tmp_path, of_file, changed):
    before = revisions(own_saved_url)
    shell(ARCHIVE_TWO)
    shell(RESTORE)
    file = tmp_path / "revisions-2025.tsv"
    text = file.read_text() if of_file else all_revisions(own_saved_url)
    file.write_text(text.replace(of_file, changed) if of_file else text)
    assert "the file differs from the table" in shell(ARCHIVE_TWO, status=None)
    assert revisions(own_saved_url) == before
