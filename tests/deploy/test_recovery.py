"""Backups and point-in-time recovery by pgBackRest, as deploy/DATABASE.md prints them, on Debian's layout."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.deploy.debian import WAL, Host

KINDS = ("cut", "empty", "unreadable", "removed", "unmounted")
REPOSITORIES = {"shipped": (), "encrypted": ("repo1-cipher-type=aes-256-cbc", "repo1-cipher-pass=secret"),
    "asynchronous": ("archive-async=y",)}  # fmt: skip


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
