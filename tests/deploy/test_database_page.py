"""The commands of deploy/DATABASE.md, as printed, on clusters of the test's own."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from stackmgr import paths
from stackmgr.errors import CommandError
from stackmgr.operate import erasure, issued_keys, preflight
from stackmgr.operate.connection import operating
from tests.deploy.dba import Dba, save, sql
from tests.deploy.runbook import blocks, lines
from tests.operate import saved
from tests.support.examples import configuration
from tests.support.server import running_service, send_request
from tests.support.waiting import eventually

PAGE = paths.directory("deploy") / "DATABASE.md"
DEBIAN = Path("/usr/lib/postgresql/15/bin")
MANAGER, OTHER_MANAGER = saved.MANAGER, saved.OTHER_MANAGER
OF_MANAGER = ("managers", "stacks", "stack_revisions", "creation_receipts")
# Without the hour of the last use.
KEYS = """
SELECT (key_digest, key_id, label, created_at, expires_at, revoked_at, quota_id)::text
FROM stackmgr.api_keys WHERE external_id = %s
"""
TABLES = b"""
SELECT relname, array_to_string(reloptions, ' ') FROM pg_class
WHERE relnamespace = 'stackmgr'::regnamespace AND relkind = 'r'
"""
COPY_MANAGER, RECOVER_MANAGER = blocks("Recovery of one manager", PAGE)


@pytest.fixture
def shell(binaries: Path) -> Iterator[Dba]:
    shell = Dba(binaries)
    yield shell
    shell.close()


def contents(url: str) -> dict[str, tuple[str, list[tuple[Any, ...]]]]:
    """Return the storage parameters and the rows of each table."""
    return {
        name: (parameters, sorted(sql(url, f"SELECT saved::text FROM stackmgr.{name} AS saved")))
        for name, parameters in sql(url, TABLES.decode())
    }


def assert_complete(url: str, expected: dict[str, tuple[str, list[tuple[Any, ...]]]]) -> None:
    assert contents(url) == expected
    assert preflight.examine(url, thorough=True).problems == []


@dataclass
class Scene:
    """A service with two managers, and a copy of its server from before."""

    url: str
    copy: str
    key: str
    spare_key_id: str
    manager_id: str
    stacks: list[str]
    port: int

    def names(self) -> list[str]:
        return [send(self.port, self.key, "GET", f"/{each}")["name"] for each in self.stacks]

    def saved(self, url: str) -> dict[str, set[tuple[Any, ...]]]:
        """Return the manager's rows of each table."""
        rows = "SELECT {0}::text FROM stackmgr.{0} WHERE manager_id = %s"
        found = {name: set(sql(url, rows.format(name), self.manager_id)) for name in OF_MANAGER}
        return found | {"api_keys": set(sql(url, KEYS, MANAGER))}


def send(port: int, key: str, method: str, path: str = "", **sent: str) -> dict[str, Any]:
    """Send a request that succeeds and return the stack of its response."""
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    headers["Idempotency-Key"] = sent.get("name", "")
    body = json.dumps(sent if path else configuration(**sent)) if sent else None
    status, response = send_request(port, f"/manager/stacks{path}", headers, method, body)
    assert status == (201 if method == "POST" else 200), response
    stack: dict[str, Any] = json.loads(response)
    return stack


@pytest.fixture
def scene(shell: Dba, monkeypatch) -> Iterator[Scene]:
    monkeypatch.setattr(erasure, "LONGEST_REQUEST_SECONDS", 0)
    url = shell.begin(data := shell.make("data"))
    with operating(url) as operator:
        key = issued_keys.create(operator, MANAGER, quota=issued_keys.Quota(100, 1)).key
        spare = issued_keys.create(operator, MANAGER).key_id
        other = issued_keys.create(operator, OTHER_MANAGER).key
    service = running_service(shell.url(data, user="stackmgr_service"))
    with service as running:
        stacks = [send(running.port, key, "POST", name=f"Growth {number}")["id"] for number in range(3)]
        query = "SELECT manager_id::text FROM stackmgr.managers WHERE external_id = %s"
        [(manager_id,)] = sql(url, query, MANAGER)
        send(running.port, other, "POST", name="Other")
        copy = shell.folder / "copy"
        shell.run(f"pg_basebackup -c fast -D {copy}")
        shell.settle(copy)
        shell.run(f"pg_ctl -D {copy} -w start")
        copied = shell.url(str(copy), user="stackmgr_operator")
        shell.variables |= {"PGUSER": "stackmgr_operator", "COPY": copied, "MANAGER_ID": manager_id}
        yield Scene(url, copied, key, spare, manager_id, stacks, running.port)
        query = "SELECT name FROM stackmgr.current_stack WHERE external_id = %s"
        assert sql(url, query, OTHER_MANAGER) == [("Other",)]


def test_half_erased_manager_is_recovered(shell, scene, monkeypatch):
    monkeypatch.setattr(erasure, "_BATCH", 1)
    shell.run(COPY_MANAGER)
    copied = scene.saved(scene.copy)
    with operating(scene.url) as operator, operating(scene.url) as other:
        issued_keys.revoke(operator, scene.spare_key_id)
        revoked = scene.saved(scene.url)["api_keys"] - copied["api_keys"]

        def hold(done: int, *_: object) -> None:
            if done == 8:
                erasure.hold(other, scene.manager_id, "recovery")

        with pytest.raises(CommandError):
            erasure.erase(operator, scene.manager_id, MANAGER, hold)
        assert [len(rows) for rows in scene.saved(scene.url).values()] == [0, 1, 0, 0, 2]
        erasure.release(other, scene.manager_id)
        with pytest.raises(AssertionError, match="is not finished: hold the manager first"):
            shell.run(RECOVER_MANAGER)
        erasure.hold(other, scene.manager_id, "recovery")
        for _ in range(2):
            shell.run(RECOVER_MANAGER)
            recovered = scene.saved(scene.url)
            # The key that was revoked after the copy stays revoked.
            assert recovered["api_keys"] - copied["api_keys"] == revoked
            assert recovered | {"api_keys": copied["api_keys"]} == copied
        with pytest.raises(psycopg.errors.ForeignKeyViolation):
            sql(scene.url, "DELETE FROM stackmgr.managers WHERE manager_id = %s", scene.manager_id)
        with pytest.raises(CommandError, match="is held since"):
            erasure.erase(operator, scene.manager_id, MANAGER, hold)
    assert scene.names()[0] == "Growth 0"


def test_erased_and_overwritten_are_recovered(shell, scene):
    with operating(scene.url) as operator:
        assert erasure.erase(operator, scene.manager_id, MANAGER, lambda *_: None).stacks == 3
    shell.run(COPY_MANAGER + RECOVER_MANAGER)
    assert scene.saved(scene.url) == scene.saved(scene.copy)
    assert scene.names() == ["Growth 0", "Growth 1", "Growth 2"]

    for each in scene.stacks[:2]:
        send(scene.port, scene.key, "PATCH", f"/{each}", name="lost")
    sql(scene.url, "DELETE FROM stackmgr.stack_revisions WHERE revision_number = 1 AND name = 'Growth 1'")
    for revert in ("", "-v revert=no "):
        shell.run(RECOVER_MANAGER.replace("-v folder", f"{revert}-v folder"))
        assert scene.names() == ["lost", "lost", "Growth 2"]
    with pytest.raises(AssertionError, match="the copy has no manager of this manager id"):
        shell.run(COPY_MANAGER.replace("recovered", "unknown"), MANAGER_ID=MANAGER)
    shell.run(RECOVER_MANAGER.replace("-v folder", "-v revert=yes -v folder"))
    assert scene.names() == ["Growth 0", "Growth 1", "Growth 2"]
    live, copied = scene.saved(scene.url), scene.saved(scene.copy)
    assert [len(live[table] - copied[table]) for table in live] == [0, 2, 4, 0, 0]
    assert [len(copied[table] - live[table]) for table in live] == [0, 2, 0, 0, 0]
    for name, old, new in (
        ("stack_revisions", "Growth 2", "Growth 3"),
        ("creation_receipts", r"\b20\d\d-", "1999-"),
    ):
        file = shell.folder / "recovered" / f"{name}.tsv"
        unchanged = file.read_text()
        file.write_text(re.sub(old, new, unchanged))
        with pytest.raises(AssertionError, match="has another history"):
            shell.run(RECOVER_MANAGER)
        file.write_text(unchanged)
    assert scene.saved(scene.url) == live


def test_a_parallel_dump_is_restored_and_analysed(shell):
    save(url := shell.begin(data := shell.make("data")))
    for command in lines("Parallel dump and restore", PAGE):
        shell.run(command)
    restored = shell.url(data, "stackmgr_parallel")
    assert_complete(restored, contents(url))
    query = "SELECT reltuples FROM pg_class WHERE oid = 'stackmgr.stacks'::regclass"
    assert sql(restored, query) == [(3,)]


@pytest.mark.skipif(not DEBIAN.exists(), reason="needs Debian's postgresql-15")
def test_pg_upgrade_carries_everything(shell):
    path = shell.variables["PATH"]
    try:
        shell.run("initdb --help | grep -q no-data-checksums")
    except AssertionError:
        pytest.skip("the block is printed for 18")
    old = shell.make("old", f"{DEBIAN}/initdb")
    shell.variables["PATH"] = f"{DEBIAN}:{path}"
    save(url := shell.begin(old))
    expected = contents(url)
    query = "SELECT attoptions FROM pg_attribute WHERE attoptions::text !~ 'n_distinct' LIMIT 1"
    if unknown := sql(url, query):
        pytest.skip(f"this PostgreSQL 15 stores an option of columns that 18 may not read: {unknown[0][0]}")
    shell.run(f"pg_ctl -D {old} -m fast stop")
    new = f"{shell.folder}/new"
    shell.variables |= {"PATH": path, "OLD": old, "NEW": new, "PGHOST": f"{new}.sock"}
    shell.variables |= {"OLD_BIN": str(DEBIAN), "NEW_BIN": path.partition(":")[0]}
    initialize, *rest = lines("Major upgrade", PAGE)
    shell.run(initialize)
    shell.settle(Path(new))
    for command in rest:
        shell.run(command)
    assert_complete(shell.url(new), expected)


def test_logical_replication_copies_everything(shell):
    source, target = shell.make("source"), shell.make("target")
    save(source_url := shell.begin(source))
    shell.run(f"pg_ctl -D {target} -w start")
    shell.run(f"PGHOST={target}.sock psql -X -q -d postgres -f deploy/postgresql/roles.sql")
    # A connection string in single quotes of SQL has none of its own.
    shell.variables |= {"SOURCE": source_url.replace("'", ""), "TARGET": shell.url(target)}
    for command in lines("Logical replication", PAGE):
        shell.run(command)
    sql(source_url, "UPDATE stackmgr.stacks SET name = 'later'")
    eventually(lambda: contents(shell.url(target)) == contents(source_url), 30)
    shell.run("psql -X \"$TARGET\" -c 'DROP SUBSCRIPTION stackmgr_all'")
    assert_complete(shell.url(target), contents(source_url))
