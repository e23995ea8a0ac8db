"""Backups and point-in-time recovery by pgBackRest, as deploy/DATABASE.md prints them, on Debian's layout.

RECOVERIES=20 with `-o faulthandler_timeout=0` rehearses 20 recoveries with random damages of the archive.
"""

import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from time import time_ns

import psutil
import pytest

from tests.deploy.debian import WAL, Host

RECOVERIES = int(os.environ.get("RECOVERIES", "4"))


@pytest.fixture
def host(request) -> Iterator[Host]:
    host = Host(*getattr(request, "param", ()))
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
    [oldest] = host.run("pgbackrest --output=json info | jq -r '.[0].backup[].label'").split()
    host.backup("incr")
    assert host.recover(backup=oldest) == []
    assert host.rows() == [1, 2, 4, 5, 6]


def damage(host: Host, file: Path, kind: str) -> Callable[[], None]:
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
REPOSITORIES = {"shipped": (), "encrypted": ("repo1-cipher-type=aes-256-cbc", "repo1-cipher-pass=secret"),
    "asynchronous": ("archive-async=y",)}  # fmt: skip


@pytest.mark.parametrize("host", REPOSITORIES.values(), ids=REPOSITORIES, indirect=True)
def test_a_damaged_archive_ends_no_recovery_without_an_error(host):
    for number in range(5):
        host.add(number)
    host.backup("incr")
    host.add(5)
    *_, time, _ = map(host.add, range(6, 11))
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
    processes = [server, *server.children()]
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    assert psutil.wait_procs(processes, 60)[1] == []  # until its parent knows, its lock file counts
    assert host.recover(WAL) == []
    assert host.rows() == [0, 1, 2, 3]


def test_a_backup_needs_the_archive(host):
    host.sql("ALTER SYSTEM SET archive_mode = off")
    host.run("pg_ctlcluster 15 main restart")
    with pytest.raises(AssertionError, match="archive_mode must be enabled"):
        host.backup("incr")


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
            assert host.recover(time=time, timeline=chosen) == [], (seed, kind, failed)
        assert host.rows() == [row for row, _ in expected], (chosen, time, kind)
        timeline = host.timeline()
        history[timeline] = list(expected)
        host.backup("incr")
    print(f"seed {seed}: {RECOVERIES} recoveries, {errors} ended with an error because of a damage")
