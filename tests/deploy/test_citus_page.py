"""What deploy/CITUS.md says, as it is printed, on servers with passwords and the page's pg_hba.conf."""

import itertools
import json
import os
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from stackmgr import paths
from stackmgr.operate import erasure, migrations
from tests.deploy.dba import Shell
from tests.deploy.runbook import blocks
from tests.support.client import STACKS
from tests.support.command_line import Outcome, runner
from tests.support.examples import configuration
from tests.support.memory import memory
from tests.support.server import RunningService, free_port, running_service, send_request
from tests.support.waiting import eventually

PAGE = paths.directory("deploy") / "CITUS.md"
BINARIES = os.environ.get("CITUS_BINARIES", "")
PASSWORD = "between-nodes"  # noqa: S105 - of servers that end with the test
# What pg_hba.conf has below the page's lines.
OTHER_LINES = """
local  all          all  trust
local  replication  all  trust
host   all          all  127.0.0.0/8  scram-sha-256
"""
COORDINATOR, STANDBY, ADDED = 1, 4, 5
WORKERS = (2, 3)

RELEASE = """
SET LOCAL ROLE stackmgr_owner;
-- Two statements; a semicolon; in a comment.
ALTER TABLE stackmgr.stacks ADD CONSTRAINT stacks_probe CHECK (revision_number < 1000000) NOT VALID;
ALTER TABLE stackmgr.stacks VALIDATE CONSTRAINT stacks_probe;
CREATE FUNCTION stackmgr.probe(manager_id uuid) RETURNS text LANGUAGE plpgsql AS $$BEGIN RETURN 'one'; END$$;
SELECT create_distributed_function('stackmgr.probe(uuid)', 'manager_id', colocate_with => 'stackmgr.stacks');
"""
NEXT_RELEASE = """
SET LOCAL ROLE stackmgr_owner;
CREATE OR REPLACE FUNCTION stackmgr.probe(manager_id uuid) RETURNS text LANGUAGE plpgsql
AS $$BEGIN RETURN 'two'; END$$;
"""
PROBED = "SELECT result FROM run_command_on_all_nodes('SELECT stackmgr.probe(gen_random_uuid())')"
NODE_OF = """
SELECT nodename FROM pg_dist_placement
JOIN pg_dist_node USING (groupid)
WHERE shardid = (
    SELECT get_shard_id_for_distribution_column('stackmgr.stacks', manager_id)
    FROM stackmgr.managers WHERE external_id = '{}'
)
"""
IS_ARCHIVED = "SELECT last_archived_wal >= '{}' FROM pg_stat_archiver"
IS_REPLAYED = "SELECT count(*) > 0 FROM pg_stat_replication WHERE replay_lsn >= pg_current_wal_lsn()"
TAKES_WRITES = "SELECT NOT pg_is_in_recovery()"
PLACED = "SELECT count(*) FROM citus_shards WHERE nodename = '127.0.1.5'"

pytestmark = pytest.mark.skipif(not BINARIES, reason="CITUS_BINARIES is not set")


class Nodes(Shell):
    """Servers of one user with a home each; the page's addresses are on loopback."""

    def __init__(self) -> None:
        super().__init__(BINARIES, memory())
        self.port = str(free_port())

    def of_page(self, section: str) -> list[str]:
        """Return the blocks of *section* with the addresses, port and password of this test."""
        found = []
        for text in blocks(section, PAGE):
            local = text.replace("10.0.0.0/29", "127.0.0.0/8").replace("10.0.0.", "127.0.1.")
            found.append(local.replace("5432", self.port).replace("PASSWORD", PASSWORD))
        return found

    def home(self, number: int) -> Path:
        return self.folder / str(number)

    def run_on(self, number: int, command: str, stdin: str = "") -> None:
        """Run *command* in the shell of a node's administrator."""
        home = str(self.home(number))
        self.run(command, stdin, HOME=home, PGHOST=home, PGPORT=self.port)

    def write(self, number: int, name: str, text: str) -> None:
        """Write a file of a node, as its user."""
        self.run_on(number, f"umask 077; cat > {self.home(number) / name}", text)

    def settle(self, number: int) -> None:
        """Let a data directory be that of a node of this number."""
        home = self.home(number)
        self.run_on(number, f"mkdir -p {home}/archive; cat >> {home}/data/postgresql.conf", dedent(f"""
            listen_addresses = '127.0.1.{number}'
            port = {self.port}
            unix_socket_directories = '{home}'
            citus.local_hostname = '127.0.1.{number}'
            archive_mode = on
            archive_command = 'cp %p {home}/archive/%f'
            restore_command = 'cp {home}/archive/%f %p'
        """))  # fmt: skip

    def prepare(self, number: int) -> None:
        """Make a node as the page says."""
        settings, hba, passwords, shell, psql = self.of_page("Nodes")
        home = self.home(number)
        self.run(f"mkdir {home}")
        self.run_on(number, f"initdb -D {home}/data -U postgres -E UTF8 --locale=C --no-sync -A trust")
        self.write(number, "data/pg_hba.conf", hba + OTHER_LINES)
        self.write(number, ".pgpass", passwords)
        self.settle(number)
        self.run_on(number, f"cat >> {home}/data/postgresql.conf", settings)
        self.start(number)
        self.run_on(number, shell)
        self.write(number, "psql.sql", psql)
        self.run_on(number, f"psql -X -v ON_ERROR_STOP=1 -d stackmgr -f {home}/psql.sql", f"{PASSWORD}\n" * 8)

    def start(self, number: int) -> None:
        self.run_on(number, f"pg_ctl -D {self.home(number)}/data -w -l {self.home(number)}/log start")

    def stop(self, number: int, mode: str = "fast") -> None:
        self.run_on(number, f"pg_ctl -D {self.home(number)}/data -w -m {mode} stop")

    def sql(self, number: int, query: str) -> list[tuple[Any, ...]]:
        """Run statements as the superuser, and return the rows of the last one."""
        conninfo = f"host={self.home(number)} port={self.port} user=postgres dbname=stackmgr"
        with psycopg.connect(conninfo, autocommit=True) as connection:
            cursor = None
            for statement in filter(str.strip, query.split(";")):
                cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor and cursor.description else []


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    nodes = Nodes()
    yield nodes
    nodes.close()


class Api:
    """Requests of managers to the service, and what they have created."""

    def __init__(self, service: RunningService) -> None:
        self.port = service.port
        self.stacks: dict[str, tuple[str, str]] = {}  # key and stack by external id

    def _send(self, key: str, path: str, *request: str, **fields: str) -> tuple[int, str]:
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json", **fields}
        return send_request(self.port, path, headers, *request)

    def create(self, external_id: str, key: str, idempotency_key: str = "first") -> int:
        ids = {"Idempotency-Key": idempotency_key, "X-Request-Id": f"of-{external_id}"}
        status, body = self._send(key, STACKS, "POST", json.dumps(configuration(name="Growth")), **ids)
        if status == 201:
            self.stacks[external_id] = (key, json.loads(body)["id"])
        return status

    def update(self, external_id: str) -> int:
        key, stack_id = self.stacks[external_id]
        return self._send(key, f"{STACKS}/{stack_id}", "PATCH", '{"name": "Renamed"}')[0]

    def get(self, external_id: str) -> int:
        key, stack_id = self.stacks[external_id]
        return self._send(key, f"{STACKS}/{stack_id}")[0]


def test_the_page(nodes: Nodes, monkeypatch, capsys, tmp_path):
    run = runner(monkeypatch, capsys)

    def command(*arguments: object, status: int = 0) -> Outcome:
        outcome = run(*arguments)
        assert outcome.status == status, (arguments, outcome)
        return outcome

    environment = install(nodes, command, monkeypatch)
    with running_service(**environment) as service:
        api = Api(service)
        for external_id in (str(uuid4()) for _ in range(8)):
            key = command("keys", "issue", "--external-id", external_id, "--quota", "1000/1").out.strip()
            assert api.create(external_id, key) == 201, service.log()
            assert api.update(external_id) == api.get(external_id) == 200
        every_command(api, command, monkeypatch)
        a_release(nodes, command, monkeypatch, tmp_path)
        backup(nodes, api)
    restore(nodes)
    with running_service(**environment) as service:
        api.port = service.port
        assert {api.get(external_id) for external_id in api.stacks} == {200}
        a_lost_worker(nodes, api)
        another_node(nodes)
        assert {api.update(external_id) for external_id in api.stacks} == {200}


def install(nodes: Nodes, command: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Follow the page up to a service's environment, which is returned; the commands have the operator's."""
    for number in (COORDINATOR, *WORKERS):
        nodes.prepare(number)
    for login in ("stackmgr_operator", "stackmgr_service"):
        nodes.sql(COORDINATOR, f"ALTER ROLE {login} PASSWORD '{PASSWORD}'")
    for role in ("stackmgr_owner", "stackmgr_reader"):
        with pytest.raises(psycopg.OperationalError, match="rejects connection"):
            psycopg.connect(host=str(nodes.home(COORDINATOR)), port=nodes.port, user=role, dbname="stackmgr")
    add_nodes, distribute, variables = nodes.of_page("Installation")
    values = dict(assignment.split("=", 1) for assignment in shlex.split(variables))
    url = values.pop("STACKMGR_DATABASE_URL")
    monkeypatch.setenv("STACKMGR_DATABASE_URL", url.replace("stackmgr_service", "stackmgr_operator"))
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    command("migrate")
    assert "deploy/citus.sql" in command("check", status=3).err
    nodes.sql(COORDINATOR, add_nodes)
    nodes.run_on(COORDINATOR, distribute)
    assert command("check").out.endswith("\nok\n")
    return {"database_url": url, "env": values | {"WEB_CONCURRENCY": "1"}}


def every_command(api: Api, command: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run what reads or changes the database."""
    monkeypatch.setattr(erasure, "LONGEST_REQUEST_SECONDS", 0.0)
    external_id, other, erased = list(api.stacks)[:3]
    assert {*api.stacks} <= {each["external_id"] for each in command("managers", "list", "--json").json}
    assert external_id in command("managers", "show", external_id).out
    [issued] = command("keys", "list", "--external-id", other, "--json").json
    command("keys", "rotate", issued["key_id"], "--overlap", "600")
    command("keys", "revoke", issued["key_id"])
    del api.stacks[other]
    [manager] = command("managers", "show", erased, "--json").json
    result = command("managers", "erase", manager["manager_id"], "--confirm", erased, "--json").json
    assert result.pop("manager_id") == manager["manager_id"]
    assert result == {"stacks": 1, "revisions": 2, "receipts": 1, "keys": 1}
    del api.stacks[erased]
    [manager] = command("managers", "show", external_id, "--json").json
    for old, new in itertools.pairwise((manager["identity_id"], "another", manager["identity_id"])):
        confirmed = ("--confirm-external-id", external_id, "--confirm-identity-id", old)
        command("managers", "rebind", manager["manager_id"], "--to-identity-id", new, *confirmed)


def a_release(
    nodes: Nodes, command: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Let two releases add a constraint and a function, and replace it, on every node."""
    newest = migrations.available()[-1].version
    shutil.copytree(paths.directory("sql"), tmp_path / "sql")
    with monkeypatch.context() as patched:
        patched.setattr(
            paths, "directory", lambda name: (tmp_path if name == "sql" else PAGE.parents[1]) / name
        )
        for number, (text, result) in enumerate(((RELEASE, "one"), (NEXT_RELEASE, "two")), start=newest + 1):
            (tmp_path / "sql" / "migrations" / f"{number:04d}_probe.sql").write_text(text)
            assert f"applied {number:04d}_probe" in command("migrate").out
            assert nodes.sql(COORDINATOR, PROBED) == [(result,)] * 3
    nodes.sql(COORDINATOR, "ALTER TABLE stackmgr.stacks DROP CONSTRAINT stacks_probe")
    nodes.sql(COORDINATOR, f"DELETE FROM stackmgr.schema_migrations WHERE version > {newest}")  # noqa: S608


def backup(nodes: Nodes, api: Api) -> None:
    """Take a base backup of each node, name a moment, and write after it."""
    for number in (COORDINATOR, *WORKERS):
        nodes.run_on(number, f"pg_basebackup -D {nodes.home(number)}/backup -c fast")
    first = next(iter(api.stacks))
    assert api.update(first) == 200
    point, _ = nodes.of_page("Backup and restore")
    nodes.sql(COORDINATOR, point)
    before = dict(api.stacks)
    assert api.create(first, api.stacks[first][0], "later") == 201
    api.stacks = before
    for number in (COORDINATOR, *WORKERS):
        [(name,)] = nodes.sql(number, "SELECT pg_walfile_name(pg_switch_wal())")
        query = IS_ARCHIVED.format(name)
        eventually(lambda number=number, query=query: nodes.sql(number, query) == [(True,)], 120)


def restore(nodes: Nodes) -> None:
    """Restore all nodes to the moment: what was written after it is gone."""
    count = "SELECT count(*) FROM stackmgr.stacks"
    [(written,)] = nodes.sql(COORDINATOR, count)
    _, settings = nodes.of_page("Backup and restore")
    for number in (COORDINATOR, *WORKERS):
        nodes.stop(number)
        home = nodes.home(number)
        nodes.run_on(
            number, f"rm -r {home}/data; mv {home}/backup {home}/data; touch {home}/data/recovery.signal"
        )
        nodes.run_on(number, f"cat >> {home}/data/postgresql.conf", settings)
    for number in (*WORKERS, COORDINATOR):
        nodes.start(number)
        eventually(lambda number=number: nodes.sql(number, TAKES_WRITES) == [(True,)], 120)
        nodes.run_on(number, f"sed -i /^recovery_target_/d {nodes.home(number)}/data/postgresql.conf")
    assert nodes.sql(COORDINATOR, count) == [(written - 1,)]


def a_lost_worker(nodes: Nodes, api: Api) -> None:
    """Promote the standby of a worker that is lost: its managers are served again."""
    lost, other = (f"127.0.1.{number}" for number in WORKERS)
    places = {external_id: nodes.sql(COORDINATOR, NODE_OF.format(external_id)) for external_id in api.stacks}
    of_lost = [external_id for external_id, place in places.items() if place == [(lost,)]]
    of_other = [external_id for external_id, place in places.items() if place == [(other,)]]
    assert of_lost
    assert of_other
    home = nodes.home(STANDBY)
    nodes.run(f"mkdir {home}")
    nodes.run_on(2, f"pg_basebackup -D {home}/data -R -c fast; cp {nodes.home(2)}/.pgpass {home}/")
    nodes.settle(STANDBY)
    nodes.start(STANDBY)
    eventually(lambda: nodes.sql(2, IS_REPLAYED) == [(True,)], 120)
    nodes.stop(2, "immediate")
    assert {api.update(external_id) for external_id in of_other} == {200}
    assert {api.get(external_id) for external_id in of_lost} == {500}
    nodes.run_on(STANDBY, f"pg_ctl -D {home}/data -w promote")
    [move] = nodes.of_page("A lost worker")
    nodes.sql(COORDINATOR, move)
    eventually(lambda: {api.update(external_id) for external_id in of_lost} == {200}, 60)


def another_node(nodes: Nodes) -> None:
    """Add a node, and move shards to it."""
    nodes.prepare(ADDED)
    [add] = nodes.of_page("Another node")
    nodes.sql(COORDINATOR, add)
    assert nodes.sql(COORDINATOR, PLACED)[0][0] > 0
