"""What deploy/DATABASE.md gives a DBA to run, as it is printed, on clusters of the test's own."""

import itertools
import json
import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from stackmgr import paths
from stackmgr.access.verifiers.database import DatabaseVerifier
from stackmgr.database.pool import Database
from stackmgr.errors import CommandError
from stackmgr.http.app import create_app
from stackmgr.operate import erasure, holds, issued_keys, migrations, preflight
from stackmgr.operate.connection import operating
from stackmgr.stacks import whitelist
from tests.deploy.runbook import blocks
from tests.support.client import Client
from tests.support.examples import configuration
from tests.support.server import running_service, send_request
from tests.support.waiting import eventually

PAGE = paths.directory("deploy") / "DATABASE.md"
DEBIAN = Path("/usr/lib/postgresql/15/bin")
SETTINGS = "listen_addresses = ''\nunix_socket_directories = '{}'\nwal_level = logical\n"
SUPERUSER = "the login is a superuser: the service needs no more than stackmgr_app"
SPELLINGS = dict(whitelist.load(paths.default_whitelist()).spellings)
# In place of the page's 60 s, and how long a segment may take to its copy.
ARCHIVE_SECONDS, COPY_SECONDS = 4, 3
ROWS = "SELECT saved::text FROM stackmgr.{} AS saved"
MANAGER, OTHER_MANAGER = "5f0c8d0e-3c3c-4c59-9a55-0d6a8b1f2e77", "3b241101-e2bb-4255-8caf-4136c566a962"
# Those of the manager's keys without the hour of the last use.
OF_MANAGER = {
    "managers": "managers::text",
    "stacks": "stacks::text",
    "stack_revisions": "stack_revisions::text",
    "creation_receipts": "creation_receipts::text",
    "api_keys": "(key_digest, key_id, label, created_at, expires_at, revoked_at, quota_id)::text",
}
TABLES = b"""
SELECT relname, array_to_string(reloptions, ' ') FROM pg_class
WHERE relnamespace = 'stackmgr'::regnamespace AND relkind = 'r'
"""


def lines(section: str) -> list[str]:
    return [line for block in blocks(section, PAGE) for line in block.splitlines()]


class Shell:
    """A DBA's shell, as the user that PostgreSQL runs as, in a folder that also holds the sockets."""

    def __init__(self, binaries: Path) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="stackmgr-dba-"))
        (self.folder / "deploy").symlink_to(paths.directory("deploy"))
        self._as: dict[str, Any] = {}
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(self.folder, nobody.pw_uid, nobody.pw_gid)
            self._as = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        self.variables = {"PATH": f"{binaries}:{os.environ['PATH']}", "PGUSER": "postgres"}

    def run(self, command: str) -> None:
        log = self.folder / "log"
        # To a file: a server that is started would keep a pipe open.
        with log.open("ab") as output:
            ended = subprocess.run(
                ["/bin/sh", "-euc", command],
                cwd=self.folder,
                env=self.variables,
                stdout=output,
                stderr=output,
                check=False,
                **self._as,
            )
        assert ended.returncode == 0, f"{command}: {log.read_text(errors='replace')}"

    def make(self, name: str, initdb: str = "initdb") -> str:
        """Make a cluster with sockets of its own, and return its directory."""
        data = self.folder / name
        self.run(f"{initdb} -D {data} -U postgres -E UTF8 --locale=C")
        self.settle(data)
        return str(data)

    def settle(self, data: Path) -> None:
        sockets = self.folder / f"{data.name}.sock"
        self.run(f"mkdir {sockets}")
        with (data / "postgresql.conf").open("a") as file:
            file.write(SETTINGS.format(sockets))

    def url(self, data: str, database: str = "stackmgr") -> str:
        return f"host={data}.sock user=postgres dbname={database}"

    def begin(self, data: str) -> str:
        """Start a cluster, point the programs to it, and make the service's database in it."""
        self.run(f"pg_ctl -D {data} -w start")
        self.variables["PGHOST"] = f"{data}.sock"
        self.run("psql -X -q -d postgres -f deploy/postgresql/roles.sql")
        migrations.apply(self.url(data))
        return self.url(data)


@pytest.fixture
def shell(binaries: Path) -> Iterator[Shell]:
    shell = Shell(binaries)
    yield shell
    for pid_file in shell.folder.glob("*/postmaster.pid"):
        with suppress(AssertionError):
            shell.run(f"pg_ctl -D {pid_file.parent} -m immediate stop")
    shutil.rmtree(shell.folder)


def create(url: str, *names: str) -> None:
    """Create stacks through the application."""
    for role in ("stackmgr_owner", "stackmgr_app"):
        database = Database(url, role=role, pool_size=1)
        database.open()
        if role == "stackmgr_owner":
            with database.session() as session:
                key = issued_keys.issue(session, external_id := MANAGER)
        else:
            app = create_app(database=database, verifier=DatabaseVerifier(), spellings=SPELLINGS)
            for name in names:
                client = Client(app, key, external_id, [])
                response = client.create(configuration(name=name), key=name)
                assert response.status_int == 201
                assert client.update(response.json["id"], {"name": name}).status_int == 200
        database.close()


def contents(url: str) -> dict[str, tuple[str, list[str]]]:
    """Return the storage parameters and the rows of each table."""
    with psycopg.connect(url, options="-c TimeZone=UTC") as connection:
        return {
            name: (parameters, sorted(row for (row,) in connection.execute(ROWS.format(name).encode())))
            for name, parameters in connection.execute(TABLES).fetchall()
        }


def assert_complete(url: str, saved: dict[str, tuple[str, list[str]]]) -> None:
    assert contents(url) == saved
    assert preflight.examine(url).problems == []


@pytest.fixture
def archiving(shell: Shell) -> str:
    """The connection string of a server that archives its WAL as the page says, and has a base backup."""
    try:
        shell.run("pg_verifybackup --version")
    except AssertionError:  # that of the wheel for 18 crashes
        if not DEBIAN.exists():
            pytest.skip("needs a pg_verifybackup that runs")
        shell.variables["PATH"] = f"{DEBIAN}:{shell.variables['PATH']}"
    data = shell.make("data")
    url = shell.begin(data)
    for name in ("archive", "backups", "scripts", "new.sock"):
        shell.run(f"mkdir {name}")
        shell.variables[name.upper()] = f"{shell.folder}/{name}"
    shell.variables |= {"DATA": data, "NEW": f"{shell.folder}/new", "METRICS": f"{shell.folder}/backup.prom"}
    setup, daily = blocks("Point-in-time recovery", PAGE)[:2]
    assert "archive_timeout = '60s'" in setup
    shell.run(setup.replace("'60s'", f"'{ARCHIVE_SECONDS}s'"))
    shell.run(daily)
    [backup] = (shell.folder / "backups").iterdir()
    shell.variables["BACKUP"] = str(backup)
    return url


def recover(shell: Shell, *steps: int, paused: Callable[[str], None] | None = None) -> str:
    """Recover by some steps of the page, and return the connection string of the new server.

    *paused*, if given, is called with it while the recovery pauses at its target.
    """
    of_page, url = blocks("Point-in-time recovery", PAGE)[2:], shell.url(shell.variables["NEW"])
    shell.variables["RECOVERED"] = shell.url(shell.variables["NEW"], "postgres")
    for step in steps:
        if "pg_ctl" in of_page[step]:
            with Path(shell.variables["NEW"], "postgresql.auto.conf").open("a") as file:
                file.write(f"unix_socket_directories = '{shell.folder}/new.sock'\n")
        block = of_page[step]
        if paused and "pg_ctl" in block:
            start, _, block = block.partition("\n")
            shell.run(start)
            paused(url)
        shell.run(block.replace("= promote", "= pause" if paused else "= promote"))
    assert preflight.examine(url).warnings == [SUPERUSER]
    return url


PREPARE, LAST_SEGMENTS, TARGET, START = range(4)


def test_point_in_time_recovery_ends_at_the_time_it_was_given(shell, archiving):
    create(archiving, "before")
    saved = contents(archiving)
    with psycopg.connect(archiving, autocommit=True) as admin:
        # So much WAL that the state is consistent long before the end of the recovery.
        admin.execute(b"CREATE TABLE public.load AS SELECT number FROM generate_series(1, 100) AS number")
        for _ in range(20):
            admin.execute(b"INSERT INTO public.load SELECT number FROM generate_series(1, 100000) AS number")
        shell.variables["TIME"] = str(admin.execute(b"SELECT clock_timestamp()").fetchone()[0])
    create(archiving, "after")
    with psycopg.connect(archiving, autocommit=True) as admin:
        admin.execute(b"SELECT pg_switch_wal()")
    shell.run("pg_ctl -D $DATA -m fast stop")

    def copy_too_early(url: str) -> None:
        with psycopg.connect(url, autocommit=True) as admin:
            is_paused = b"SELECT pg_get_wal_replay_pause_state() = 'paused'"
            eventually(lambda: admin.execute(is_paused).fetchone() == (True,), 30)
            command = (
                f"psql -X '{url}' -v manager={MANAGER} -v folder=. -f deploy/postgresql/copy_manager.sql"
            )
            with pytest.raises(AssertionError, match="to its target still runs"):
                shell.run(command)
            admin.execute(b"SELECT pg_wal_replay_resume()")

    url = recover(shell, PREPARE, TARGET, START, paused=copy_too_early)
    with psycopg.connect(url) as admin:
        assert admin.execute(b"SELECT count(*) FROM public.load").fetchone() == (2_000_100,)
    assert_complete(url, saved)


@pytest.mark.parametrize("wal", ["lost", "readable"])
def test_a_primary_that_dies_loses_no_more_than_the_page_says(shell, archiving, wal):
    """Commit until the server is killed; without its data directory, the last seconds of commits are lost."""
    committed: list[float] = []
    killed_after = 2.5 * ARCHIVE_SECONDS
    with psycopg.connect(archiving, autocommit=True) as client:
        client.execute(b"CREATE TABLE public.drill (number integer PRIMARY KEY)")
        began = time.monotonic()
        while time.monotonic() < began + killed_after:
            client.execute(b"INSERT INTO public.drill VALUES (%s)", [len(committed)])
            committed.append(time.monotonic())
            time.sleep(0.01)
        kill(Path(shell.variables["DATA"], "postmaster.pid"))
    ended = time.monotonic()
    if wal == "lost":
        shell.run("rm -r $DATA")
    steps = (PREPARE, START) if wal == "lost" else (PREPARE, LAST_SEGMENTS, START)
    with psycopg.connect(recover(shell, *steps)) as admin:
        [(recovered, last)] = admin.execute(b"SELECT count(*), max(number) FROM public.drill").fetchall()
    assert recovered == last + 1
    loss = ended - committed[last] if recovered < len(committed) else 0
    print(f"{len(committed) - recovered} of {len(committed)} commits lost: those of the last {loss:.1f} s")
    assert loss <= (ARCHIVE_SECONDS + COPY_SECONDS if wal == "lost" else 0)


def kill(pid_file: Path) -> None:
    """End a server and its processes as a power failure would."""
    server = int(pid_file.read_text().split()[0])
    children = Path(f"/proc/{server}/task/{server}/children").read_text().split()
    for pid in (server, *map(int, children)):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_backups_are_verified_and_expire_with_their_wal(shell, archiving):
    first = Path(shell.variables["BACKUP"])
    archive, metrics = shell.folder / "archive", Path(shell.variables["METRICS"])
    _, daily = blocks("Point-in-time recovery", PAGE)[:2]
    segments = set(archive.iterdir())
    for name in ("one", "two"):
        create(archiving, name)
        time.sleep(1)  # the names of backups have seconds
        shell.run(daily.replace(" 14 ", " 2 "))
    kept = set((shell.folder / "backups").iterdir())
    assert len(kept) == 2
    assert first not in kept
    assert segments - set(archive.iterdir())
    assert time.time() - float(metrics.read_text().removeprefix("stackmgr_backup_timestamp_seconds ")) < 60
    before = metrics.read_bytes()
    programs = shell.folder / "programs"
    programs.mkdir()
    (programs / "pg_verifybackup").write_text("#!/bin/sh\nexit 1\n")
    (programs / "pg_verifybackup").chmod(0o755)
    shell.variables["PATH"] = f"{programs}:{shell.variables['PATH']}"
    time.sleep(1)
    with pytest.raises(AssertionError):
        shell.run(daily)
    assert set((shell.folder / "backups").glob("*[0-9]")) == kept
    assert metrics.read_bytes() == before


def test_a_segment_is_archived_once_and_never_replaced(shell):
    shell.run("mkdir archive; echo one > segment")
    command = "sh deploy/postgresql/archive_wal.sh segment 0001 archive"
    for _ in range(2):
        shell.run(command)
    shell.run("gzip -dc archive/0001.gz | cmp - segment; echo two > segment")
    with pytest.raises(AssertionError):
        shell.run(command)
    shell.run('test "$(gzip -dc archive/0001.gz)" = one')


@dataclass
class Scene:
    """A service with two managers, one of which keeps writing, and a copy of its server from before."""

    url: str
    copy: str
    key: str
    spare_key_id: str
    manager_id: str
    stacks: list[str]
    port: int

    def name_of(self, stack_id: str) -> str:
        name: str = send(self.port, self.key, "GET", f"/{stack_id}")["name"]
        return name

    def saved(self, url: str) -> dict[str, set[str]]:
        """Return the manager's rows of each table."""
        with psycopg.connect(url, options="-c TimeZone=UTC") as connection:
            return {
                table: {
                    row
                    for (row,) in connection.execute(
                        f"SELECT {columns} FROM stackmgr.{table}"  # noqa: S608
                        f" WHERE to_jsonb({table}) ->> %s = %s".encode(),
                        ("external_id", MANAGER) if table == "api_keys" else ("manager_id", self.manager_id),
                    )
                }
                for table, columns in OF_MANAGER.items()
            }


def send(port: int, key: str, method: str, path: str = "", **sent: str) -> dict[str, Any]:
    """Send a request that succeeds and return the stack of its response."""
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    headers["Idempotency-Key"] = sent.get("name", "")
    body = json.dumps(sent if path else configuration(**sent)) if sent else None
    status, response = send_request(port, f"/manager/stacks{path}", headers, method, body)
    assert status == (201 if method == "POST" else 200), response
    stack: dict[str, Any] = json.loads(response)
    return stack


def write_on(port: int, key: str, stopped: threading.Event) -> int:
    """Create stacks until stopped, and return how many."""
    for number in itertools.count():
        if stopped.is_set():
            return number
        send(port, key, "POST", name=str(number))
    raise AssertionError


@pytest.fixture
def scene(shell: Shell, monkeypatch) -> Iterator[Scene]:
    monkeypatch.setattr(erasure, "LONGEST_REQUEST_SECONDS", 0)
    url = shell.begin(shell.make("data"))
    with operating(url) as operator:
        key = issued_keys.create(operator, MANAGER, quota=issued_keys.Quota(100, 1)).key
        spare = issued_keys.create(operator, MANAGER).key_id
        other = issued_keys.create(operator, OTHER_MANAGER).key
    service = running_service(url.replace("user=postgres", "user=stackmgr_service"))
    with service as running, ThreadPoolExecutor() as threads, psycopg.connect(url, autocommit=True) as admin:
        names = ("Growth 0", "Growth 1", "Growth 2")
        stacks = [send(running.port, key, "POST", name=name)["id"] for name in names]
        query = b"SELECT manager_id::text FROM stackmgr.managers WHERE external_id = %s"
        [(manager_id,)] = admin.execute(query, [MANAGER]).fetchall()
        writing = threads.submit(write_on, running.port, other, stopped := threading.Event())
        try:
            copy = shell.folder / "copy"
            shell.run(f"pg_basebackup -c fast -D {copy}")
            shell.settle(copy)
            shell.run(f"pg_ctl -D {copy} -w start")
            copied = shell.url(str(copy)).replace("user=postgres", "user=stackmgr_operator")
            shell.variables |= {"PGUSER": "stackmgr_operator", "COPY": copied, "MANAGER_ID": manager_id}
            yield Scene(url, copied, key, spare, manager_id, stacks, running.port)
        finally:
            stopped.set()
        written = writing.result(30)
        query = b"SELECT count(*) FROM stackmgr.current_stack WHERE external_id = %s"
        assert admin.execute(query, [OTHER_MANAGER]).fetchone() == (written,)


def test_a_manager_that_was_erased_is_recovered(shell, scene):
    with operating(scene.url) as operator:
        assert erasure.erase(operator, scene.manager_id, MANAGER, lambda *_: None).stacks == 3
    for block in blocks("Recovery of one manager", PAGE):
        shell.run(block)
    assert scene.saved(scene.url) == scene.saved(scene.copy)
    assert [scene.name_of(each) for each in scene.stacks] == ["Growth 0", "Growth 1", "Growth 2"]


def test_a_manager_whose_erasure_a_hold_stopped_is_recovered(shell, scene, monkeypatch):
    monkeypatch.setattr(erasure, "_BATCH", 1)
    copy, recover = blocks("Recovery of one manager", PAGE)
    shell.run(copy)
    copied = scene.saved(scene.copy)
    with operating(scene.url) as operator, operating(scene.url) as other:
        issued_keys.revoke(operator, scene.spare_key_id)
        revoked = scene.saved(scene.url)["api_keys"] - copied["api_keys"]

        def hold(done: int, *_: object) -> None:
            if done == 8:
                holds.hold(other, scene.manager_id, "recovery")

        with pytest.raises(CommandError):
            erasure.erase(operator, scene.manager_id, MANAGER, hold)
        assert [len(rows) for rows in scene.saved(scene.url).values()] == [0, 1, 0, 0, 2]
        holds.release(other, scene.manager_id)
        with pytest.raises(AssertionError, match="is not finished: hold the manager first"):
            shell.run(recover)
        holds.hold(other, scene.manager_id, "recovery")
        for _ in range(2):
            shell.run(recover)
            recovered = scene.saved(scene.url)
            # The key that was revoked after the copy stays revoked.
            assert recovered["api_keys"] - copied["api_keys"] == revoked
            assert recovered | {"api_keys": copied["api_keys"]} == copied
        with psycopg.connect(scene.url) as admin, pytest.raises(psycopg.errors.ForeignKeyViolation):
            admin.execute(b"DELETE FROM stackmgr.managers WHERE manager_id = %s", [scene.manager_id])
        with pytest.raises(CommandError, match="is held since"):
            erasure.erase(operator, scene.manager_id, MANAGER, hold)
    assert scene.name_of(scene.stacks[0]) == "Growth 0"


def test_a_manager_whose_stacks_were_overwritten_is_recovered_by_further_revisions(shell, scene):
    copy, recover = blocks("Recovery of one manager", PAGE)
    shell.run(copy)
    for each in scene.stacks[:2]:
        send(scene.port, scene.key, "PATCH", f"/{each}", name="lost")
    with psycopg.connect(scene.url) as admin:
        admin.execute(b"DELETE FROM stackmgr.stack_revisions WHERE revision_number = 1 AND name = 'Growth 1'")
    shell.run(recover)
    assert [scene.name_of(each) for each in scene.stacks] == ["lost", "lost", "Growth 2"]
    shell.run(recover.replace("-v folder", "-v revert=yes -v folder"))
    assert [scene.name_of(each) for each in scene.stacks] == ["Growth 0", "Growth 1", "Growth 2"]
    live, copied = scene.saved(scene.url), scene.saved(scene.copy)
    assert [len(live[table] - copied[table]) for table in OF_MANAGER] == [0, 2, 4, 0, 0]
    assert [len(copied[table] - live[table]) for table in OF_MANAGER] == [0, 2, 0, 0, 0]
    revisions = shell.folder / "recovered" / "stack_revisions.tsv"
    receipts = shell.folder / "recovered" / "creation_receipts.tsv"
    for file, changed in (
        (revisions, revisions.read_text().replace("Growth 2", "Growth 3")),
        (receipts, re.sub(r"\b20\d\d-", "1999-", receipts.read_text())),
    ):
        unchanged = file.read_text()
        file.write_text(changed)
        with pytest.raises(AssertionError, match="has another history"):
            shell.run(recover)
        file.write_text(unchanged)
    assert scene.saved(scene.url) == live


def test_a_parallel_dump_is_restored_and_analysed(shell):
    data = shell.make("data")
    create(url := shell.begin(data), "one", "two")
    for command in lines("Parallel dump and restore"):
        shell.run(command)
    restored = shell.url(data, "stackmgr_parallel")
    assert_complete(restored, contents(url))
    with psycopg.connect(restored) as connection:
        query = b"SELECT reltuples FROM pg_class WHERE oid = 'stackmgr.stacks'::regclass"
        assert connection.execute(query).fetchone() == (2,)


@pytest.mark.skipif(not DEBIAN.exists(), reason="needs Debian's postgresql-15")
def test_pg_upgrade_carries_everything_from_the_oldest_to_the_newest(shell):
    path = shell.variables["PATH"]
    shell.variables |= {"OLD_BIN": str(DEBIAN), "NEW_BIN": path.partition(":")[0]}
    try:
        shell.run("initdb --help | grep -q no-data-checksums")
    except AssertionError:
        pytest.skip("the block is printed for 18")
    old = shell.make("old", f"{DEBIAN}/initdb")
    shell.variables["PATH"] = f"{DEBIAN}:{path}"
    create(url := shell.begin(old), "one", "two")
    saved = contents(url)
    shell.run(f"pg_ctl -D {old} -m fast stop")
    new = f"{shell.folder}/new"
    shell.variables |= {"PATH": path, "OLD": old, "NEW": new, "PGHOST": f"{new}.sock"}
    initialize, *rest = lines("Major upgrade")
    shell.run(initialize)
    shell.settle(Path(new))
    for command in rest:
        shell.run(command)
    assert_complete(shell.url(new), saved)


def test_logical_replication_copies_everything(shell):
    source, target = shell.make("source"), shell.make("target")
    create(source_url := shell.begin(source), "one")
    shell.run(f"pg_ctl -D {target} -w start")
    shell.run(f"PGHOST={target}.sock psql -X -q -d postgres -f deploy/postgresql/roles.sql")
    shell.variables |= {"SOURCE": source_url, "TARGET": shell.url(target)}
    for command in lines("Logical replication"):
        shell.run(command)
    create(source_url, "two")
    eventually(lambda: contents(shell.url(target)) == contents(source_url), 30)
    shell.run("psql -X \"$TARGET\" -c 'DROP SUBSCRIPTION stackmgr_all'")
    assert_complete(shell.url(target), contents(source_url))
