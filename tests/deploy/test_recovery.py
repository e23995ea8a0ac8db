"""Backups and point-in-time recovery by pgBackRest, as deploy/DATABASE.md prints them, on Debian's layout.

RECOVERIES=20 with `-o faulthandler_timeout=0` rehearses 20 recoveries with random damages of the archive.
"""

import os
import random
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from time import time_ns

import psutil
import psycopg
import pytest

from stackmgr import paths
from tests.deploy.dba import Shell
from tests.deploy.runbook import blocks
from tests.support.waiting import eventually

DEBIAN = Path("/usr/lib/postgresql/15/bin")
PAGE = paths.directory("deploy") / "DATABASE.md"
_, SETUP, STOP, EVERYTHING, TO_TIME, WAL, START, CHECK, COPY = blocks("Point-in-time recovery", PAGE)
UNIT = (PAGE.parent / "postgresql" / "stackmgr-backup.service").read_text()
RECOVERIES = int(os.environ.get("RECOVERIES", "4"))
PLACES = """
log-path={0}/logs
lock-path={0}/lock
spool-path={0}/spool

[global:restore]"""


class Host(Shell):
    """A Debian host whose /etc, cluster and repository are in a folder with a space in its name."""

    def __init__(self) -> None:
        super().__init__(DEBIAN, prefix="stackmgr dba ")
        self.old = 0
        self.data, self.repository = self.folder / "main", self.folder / "repository"
        self.conf = self.folder / "pgbackrest.conf"
        etc = self.folder / "etc"
        self.variables |= {
            "PG_CLUSTER_CONF_ROOT": str(etc),
            "PGBACKREST_CONFIG": str(self.conf),
            "PGHOST": str(self.folder),
            "PGUSER": (user := self.user),
            "PGDATABASE": "postgres",
            "DATA": str(self.data),
        }
        shipped = (PAGE.parent / "postgresql" / "pgbackrest.conf").read_text()
        text = shipped.replace("/var/lib/pgbackrest", str(self.repository))
        text = text.replace("/var/lib/postgresql/15/main", f"{self.data}\npg1-socket-path={self.folder}")
        self.write(self.conf, text.replace("\n[global:restore]", PLACES.format(self.folder)))
        self.run(
            f"mkdir etc repository logs; pg_createcluster -d '{self.data}' -s '{self.folder}' -p 5432"
            f" -l '{self.folder}/logs/pg' 15 main -- -U {user} -E UTF8 --locale=C -A trust -N"
        )
        self.write(etc / "15/main/environment", f"PGBACKREST_CONFIG = '{self.conf}'\n")
        self.write(etc / "15/main/conf.d/test.conf", "listen_addresses = ''\nfsync = off\n")
        self.run("pg_ctlcluster 15 main start")
        self.run(SETUP)
        self.sql("CREATE TABLE public.rows (number integer)")
        self.backup()

    def write(self, path: Path, text: str) -> None:
        self.run(f"cat > '{path}'", text)

    def backup(self, kind: str = "full") -> None:
        """Do what the unit does as its user."""
        check, back_up, verify = re.findall(r"^ExecStart=(\w.*)$", UNIT, re.MULTILINE)
        for command in (check, re.sub(r"--type=\$\(.*?\) ", f"--type={kind} ", back_up), verify):
            self.run(command.replace("%%", "%"))

    def sql(self, statement: str, port: int = 5432) -> list[tuple[object, ...]]:
        url = f"host='{self.folder}' port={port} user={self.variables['PGUSER']} dbname=postgres"
        with psycopg.connect(url, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def add(self, number: int) -> str:
        """Insert a row, wait until its segment is archived, and return a time after it."""
        self.sql(f"INSERT INTO public.rows VALUES ({number})")
        [(segment,)] = self.sql("SELECT pg_walfile_name(pg_switch_wal())")
        archived = f"SELECT last_archived_wal >= '{segment}' FROM pg_stat_archiver"
        eventually(lambda: self.sql(archived) == [(True,)], 30)
        return str(self.sql("SELECT clock_timestamp()::text")[0][0])

    def rows(self, port: int = 5432) -> list[object]:
        return [number for (number,) in self.sql("SELECT number FROM public.rows ORDER BY number", port)]

    def recover(self, *more: str, time: str = "", timeline: int | None = 1) -> list[str]:
        """Type the page's recovery; return the lines that failed, but for the stop of a dead server."""
        self.old += 1
        variables = {"OLD": f"{self.data}.{self.old}"}
        if time:
            variables |= {"TIME": time} | ({"TIMELINE": str(timeline)} if timeline else {})
        steps = (STOP, TO_TIME if time else EVERYTHING, *more, START, *([] if time else [CHECK]))
        failed = self.type("".join(steps), **variables)
        return [line for line in failed if not line.endswith(" stop")]


@pytest.fixture
def host() -> Iterator[Host]:
    for program in ("pgbackrest", "pg_createcluster", "jq"):
        if not shutil.which(program):
            pytest.skip(f"needs {program}")
    host = Host()
    yield host
    host.close()


def test_a_second_recovery_ends_where_it_must(host):
    first, second = host.add(1), host.add(2)
    host.add(3)
    assert host.recover(time=first) == []
    assert host.rows() == [1]
    # Later, in the history that the recovery has ended; without its timeline, never with fewer rows.
    assert host.recover(time=second, timeline=None) != []
    assert host.recover(time=second) == []
    assert host.rows() == [1, 2]
    host.add(4)
    host.backup("incr")
    host.add(5)
    assert host.recover() == []
    assert host.rows() == [1, 2, 4, 5]
    # Expiry keeps what the backups that stay need, although numbers of segments have fallen.
    host.backup()
    host.add(6)
    host.run("pgbackrest --stanza=stackmgr --repo1-retention-full-type=count --repo1-retention-full=1 expire")
    host.backup("incr")
    assert host.recover() == []
    assert host.rows() == [1, 2, 4, 5, 6]


def damage(host: Host, file: Path, kind: str) -> Callable[[], None]:
    """Damage a file of the repository, and return what undoes it."""
    content, mode = file.read_bytes(), file.stat().st_mode
    if kind == "unmounted":
        archive, away = host.repository / "archive", host.repository / "away"
        archive.rename(away)
        return lambda: (shutil.rmtree(archive, ignore_errors=True), away.rename(archive))
    if kind == "removed":
        file.unlink()
    elif kind == "unreadable":
        file.chmod(0)
    else:
        os.truncate(file, 0 if kind == "empty" else len(content) // 2)

    def undo() -> None:
        file.unlink(missing_ok=True)
        host.write(file, "")
        file.write_bytes(content)
        file.chmod(mode)

    return undo


KINDS = ("cut", "empty", "unreadable", "removed", "unmounted")


def test_a_damaged_archive_ends_no_recovery_without_an_error(host):
    for number in range(5):
        host.add(number)
    host.backup("incr")
    host.add(5)
    *_, time = map(host.add, range(6, 10))
    for kind in KINDS:
        file = sorted(host.repository.glob("archive/*/15-1/00000001*/*.zst"))[-3]
        for arguments in ({}, {"time": time}):
            undo = damage(host, file, kind)
            assert host.recover(**arguments) != [], (kind, arguments)
            undo()
    assert host.recover(time=time) == []
    assert host.rows() == list(range(10))


def test_readable_wal_loses_no_commit(host):
    for number in range(3):
        host.add(number)
    host.sql("INSERT INTO public.rows VALUES (3)")
    # As a power failure would.
    server = psutil.Process(int((host.data / "postmaster.pid").read_text().split()[0]))
    for process in (server, *server.children()):
        with suppress(psutil.NoSuchProcess):
            process.kill()
    assert host.recover(WAL) == []
    assert host.rows() == [0, 1, 2, 3]


def test_a_copy_archives_nothing_and_a_backup_needs_the_archive(host):
    time = host.add(1)
    host.add(2)
    copy = host.folder / "a copy"
    options = f'--pg1-path="$COPY_DATA" --archive-mode=off {TO_TIME.split(maxsplit=2)[2]}'
    assert options[:40] in PAGE.read_text()
    start = re.sub(r"/etc/postgresql(\S+)", rf"'{host.folder}/etc\1'", COPY)
    start = start.replace("pg_ctl", "pg_ctl -l copy.log")
    variables = {"COPY_DATA": str(copy), "TIME": time, "TIMELINE": "1"}
    assert host.type(f"pgbackrest --stanza=stackmgr {options}{start}", **variables) == []
    eventually(lambda: host.sql("SELECT NOT pg_is_in_recovery()", 5433) == [(True,)], 30)
    assert host.rows(5433) == [1]
    assert host.sql("SHOW archive_mode", 5433) == [("off",)]
    host.add(3)
    assert host.recover() == []
    assert host.rows() == [1, 2, 3]
    host.sql("ALTER SYSTEM SET archive_mode = off")
    host.run("pg_ctlcluster 15 main restart")
    with pytest.raises(AssertionError, match="archive_mode must be enabled"):
        host.backup("incr")


def test_a_recovery_that_is_cut_is_begun_again(host):
    steps = (STOP + EVERYTHING + WAL + START + CHECK).splitlines()
    for number in range(1, len(steps)):
        host.add(number)
        old = f"{host.data}.{number}"
        host.type("\n".join(steps[:number]), OLD=old)
        failed = host.type("\n".join(steps), OLD=old)
        print(f"| recovery | cut after step {number} | {'; '.join(line[:40] for line in failed)} |")
        assert host.rows() == list(range(1, number + 1))
        host.backup("incr")
    for unset in ({"DATA": ""}, {"OLD": ""}):
        failed = host.type("\n".join(steps), **{"OLD": f"{host.data}.unset"} | unset)
        print(f"| recovery | without {unset} | {'; '.join(line[:40] for line in failed)} |")
        assert failed
        assert host.rows() == list(range(1, len(steps)))


def test_rehearsal_of_recoveries_at_random(host):
    """Each archived row up to the target is there, or the recovery reports an error."""
    seed = time_ns()
    chance = random.Random(seed)  # noqa: S311
    number, timeline, errors = 0, 1, 0
    history: dict[int, list[tuple[int, str]]] = {1: []}
    for _ in range(RECOVERIES):
        for _ in range(chance.randint(2, 4)):
            number += 1
            history[timeline].append((number, host.add(number)))
            if chance.random() < 0.2:
                host.backup(chance.choice(("incr", "full")))
        chosen, time = timeline, ""
        expected = history[timeline]
        if chance.random() < 0.7:
            chosen = chance.choice([each for each, rows in history.items() if len(rows) > 1])
            # Not the last one: a time after the last commit is never reached.
            expected = history[chosen][: chance.randint(1, len(history[chosen]) - 1)]
            time = expected[-1][1]
        kind, undo = chance.choice(("", "", *KINDS)), lambda: None
        if kind:
            files = [f for f in host.repository.glob("archive/*/15-1/**/*") if f.is_file()]
            undo = damage(host, chance.choice(sorted(files)), kind)
        failed = host.recover(time=time, timeline=chosen)
        undo()
        if failed:
            errors += 1
            assert kind, failed
            assert host.recover(time=time, timeline=chosen) == []
        assert host.rows() == [row for row, _ in expected], (chosen, time, kind)
        [(segment,)] = host.sql("SELECT pg_walfile_name(pg_current_wal_lsn())")
        timeline = int(str(segment)[:8], 16)
        history[timeline] = list(expected)
        host.backup("incr")
    print(f"seed {seed}: {RECOVERIES} recoveries, {errors} ended with an error because of a damage")
