"""Does the loader fill a database as it says, and does the report run?  No time is held against anything."""

import tempfile
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from stackmgr.operate import preflight
from tests.measure.scale import load, report, server
from tests.measure.scale.subject import buffers_of
from tests.support.clusters import new_database
from tests.support.memory import reachable
from tests.support.psql import audit

STACKS = 2000
SUMS = b"""
SELECT
    (SELECT count(*) FROM stackmgr.stacks),
    (SELECT count(*) FROM stackmgr.creation_receipts),
    (SELECT sum(revision_number) FROM stackmgr.stacks) = (SELECT count(*) FROM stackmgr.stack_revisions),
    (SELECT max(count) FROM (SELECT count(*) FROM stackmgr.stacks GROUP BY manager_id) AS of_manager),
    (SELECT bool_and(name::stackmgr.stack_name IS NOT NULL AND stackmgr.allocation_is_normalised(allocation))
     FROM stackmgr.stacks)
"""
SETTINGS = b"SELECT name, current_setting(name) FROM pg_settings WHERE name = ANY (%s)"
DEFINED = b"""
SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint WHERE connamespace = 'stackmgr'::regnamespace
UNION SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'stackmgr'
ORDER BY 1, 2
"""


@pytest.fixture(scope="module")
def loaded_url(server_url: str) -> Iterator[str]:
    with new_database(server_url) as url:
        load.load(url, STACKS, 1)
        yield url


def test_a_loaded_database_is_one_that_the_service_could_have_made(
    loaded_url: str, database_url: str
) -> None:
    with psycopg.connect(loaded_url) as loaded, psycopg.connect(database_url) as migrated:
        [(stacks, receipts, are_complete, biggest, are_valid)] = loaded.execute(SUMS)
        definitions = [[row[0] for row in connection.execute(DEFINED)] for connection in (loaded, migrated)]
    assert (stacks, receipts, are_complete, are_valid) == (STACKS, STACKS, True, True)
    assert STACKS / 20 < biggest < STACKS / 5
    assert definitions[0] == definitions[1]
    assert preflight.examine(loaded_url).problems == []


def test_the_audit_finds_nothing_in_a_loaded_database(loaded_url: str) -> None:
    assert audit(loaded_url) == ""


def test_the_same_seed_makes_the_same_stacks() -> None:
    assert list(load.lines("stacks", 50, 7)) == list(load.lines("stacks", 50, 7))
    assert list(load.lines("stacks", 50, 7)) != list(load.lines("stacks", 50, 8))


def test_the_report_runs(loaded_url: str) -> None:
    with psycopg.connect(loaded_url) as connection:
        if connection.info.server_version < 180000:
            pytest.skip("reads the counts of a session, which PostgreSQL 18 has")
    text = "\n".join(report.report((loaded_url, STACKS), (loaded_url, STACKS), 1))
    for name in (*report.BOUNDS, "bytes per stack", "WAL of create again"):
        assert name in text


def node(buffers: int, *children: dict[str, Any], **members: str) -> dict[str, Any]:
    keys = {name.replace("_", " "): value for name, value in members.items()}
    return {"Shared Hit Blocks": buffers - 1, "Shared Read Blocks": 1, "Plans": list(children), **keys}


def test_the_buffers_of_a_plan_include_what_runs_after_it() -> None:
    scan = node(4, CTE_Name="stack")
    read = node(4, Subplan_Name="CTE stack")
    unread = node(6, node(1, CTE_Name="stack"), Subplan_Name="CTE revision")
    assert buffers_of(node(8, read, scan)) == 8
    assert buffers_of(node(8, read, unread, scan)) == 14


def test_the_server_of_the_report_runs_with_its_settings() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="stackmgr-") as folder,
        server.open_server(reachable(folder) / "data") as postgres,
        psycopg.connect(postgres.url("postgres")) as connection,
    ):
        in_effect = {row[0]: row[1] for row in connection.execute(SETTINGS, [list(server.SETTINGS)])}
    assert in_effect == server.SETTINGS
