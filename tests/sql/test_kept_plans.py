"""Reads by plans that one connection made when the tables had few rows, and has kept since."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from stackmgr.database import statements
from stackmgr.database.connection import DatabaseConnection, execution
from stackmgr.database.conninfo import completed_conninfo
from stackmgr.limits import MAX_PAGE_SIZE, PAGE_NAME_BYTES, TOKEN_COUNT
from stackmgr.operate import migrations
from stackmgr.stacks import cursor
from tests.sql.fleets import CALLER, MANAGER, insert
from tests.support.clusters import cluster, new_database
from tests.support.examples import ADDRESSES, STORED, configuration, spread

DEADLINE = 60.0
ROWS = 6000
# Of the first rows: the stacks, and the managers that have them; those of the last also get the later ones.
FLEETS = {
    "1 manager": [(range(1), range(60))],
    "20 managers": [(range(20), range(60))],
    "single stacks": [(range(5000), range(5000)), (range(1), range(5000, 5130))],
}
# Those of a foreign-key check are among them.
ROWS_READ = b"""
SELECT relname, seq_scan, seq_tup_read + coalesce(idx_tup_fetch, 0)
FROM pg_stat_xact_user_tables WHERE schemaname = 'stackmgr'
"""
# Its entries are read by manager, whatever else is known of the stack.
PAGE_SCANS = b"SELECT pg_stat_get_xact_numscans('stackmgr.stacks_page'::regclass)"
KEY = {"key_digest": CALLER["key_digest"]}
WRITE = {**CALLER, "request_id": "request", "key_id": None}
CONFIGURATION = STORED._asdict()
PAGE = {
    "after_created_at": cursor.START.created_at, "after_stack_id": cursor.START.stack_id, "row_limit": 26,
    "page_bytes": PAGE_NAME_BYTES, "name_bytes": PAGE_NAME_BYTES // MAX_PAGE_SIZE,
}  # fmt: skip
# What the service runs, and how many rows of the tables each may read.
CALLS: dict[str, tuple[int, dict[str, Any]]] = {
    "api_key_verify": (2, KEY), "api_key_use_record": (1, KEY),
    "api_key_quota_consume": (10, {"quota_id": MANAGER, "quota_seconds": 60}),
    "api_key_quota_peek": (3, {"quota_id": MANAGER, "quota_seconds": 60}),
    "manager_find": (1, {"external_id": MANAGER, "identity_id": MANAGER}),
    "stack_create": (5, {"idempotency_key": "new", "input_digest": bytes(32), **WRITE, **CONFIGURATION}),
    "receipt_find": (2, {"idempotency_key": MANAGER}), "stack_get": (3, {"stack_id": MANAGER, **CALLER}),
    "stack_list": (28, {**PAGE, **CALLER}), "stack_list_long_names": (26, PAGE),
    "stack_update": (4, {"stack_id": MANAGER, **WRITE, **CONFIGURATION}),
}  # fmt: skip


@pytest.fixture(scope="module")
def url(binaries: Path) -> Iterator[str]:
    with cluster(binaries, "autovacuum=off") as server_url, new_database(server_url) as url:
        migrations.apply(url)
        yield url


@pytest.fixture(scope="module", params=FLEETS.values(), ids=FLEETS)
def kept(request: pytest.FixtureRequest, url: str) -> Iterator[DatabaseConnection]:
    service = completed_conninfo(url, "stackmgr_app", DEADLINE)
    with (
        psycopg.connect(url, autocommit=True) as admin,
        DatabaseConnection.connect(service, autocommit=True) as connection,
    ):
        admin.execute(
            b"TRUNCATE stackmgr.managers, stackmgr.stacks, stackmgr.api_keys, stackmgr.api_key_quota_slots"
            b" CASCADE"
        )
        managers = request.param[0][0]
        insert(admin, range(0), range(0), managers)
        for holders, stacks in request.param:
            insert(admin, holders, stacks)
        admin.execute(b"ANALYZE")
        for name in CALLS:
            run(connection, name)
        insert(admin, holders, range(stacks.stop, stacks.stop + ROWS), range(managers.stop, ROWS))
        yield connection


def run(connection: DatabaseConnection, name: str) -> tuple[dict[str, tuple[int, int]], int]:
    statement = statements.load(name)
    _, given = CALLS[name]
    parameters = {"manager_id": MANAGER, "stack_id": str(uuid4()), "revision_id": str(uuid4())} | given
    with connection.transaction(force_rollback=True):
        before, pages_before = rows_read(connection)
        connection.run(execution(statement, parameters), time.monotonic() + DEADLINE)
        after, pages = rows_read(connection)
    read = {
        table: (scans - before.get(table, (0, 0))[0], rows - before.get(table, (0, 0))[1])
        for table, (scans, rows) in after.items()
    }
    return read, pages - pages_before


def rows_read(connection: DatabaseConnection) -> tuple[dict[str, tuple[int, int]], int]:
    scanned: Any = connection.execute(PAGE_SCANS).fetchone()
    return {table: (scans, rows) for table, scans, rows in connection.execute(ROWS_READ)}, scanned[0]


@pytest.mark.parametrize("name", CALLS)
def test_plan_of_a_tiny_table_reads_few_rows(kept, name):
    limit, _ = CALLS[name]
    read, page_scans = run(kept, name)
    assert page_scans == name.startswith("stack_list")
    assert {table: scans for table, (scans, _) in read.items() if scans} == {}
    assert 0 < sum(rows for _, rows in read.values()) <= limit


COMPRESSED = b"""
SELECT count(*) FROM stackmgr.stacks WHERE pg_column_size(allocation) < octet_length(allocation::text)
"""
# The first row of each page; a new version on the page of the old one needs no entry in any index.
UPDATE = b"""
UPDATE stackmgr.stacks SET revision_number = 2
FROM stackmgr.stacks AS old
WHERE old.ctid = stacks.ctid AND (old.ctid::text::point)[1] = 1
RETURNING (old.ctid::text::point)[0], (stacks.ctid::text::point)[0]
"""


@pytest.mark.parametrize("size", range(1, TOKEN_COUNT + 1))
def test_full_page_has_room_for_an_update(admin, size):
    allocation = json.dumps(spread(ADDRESSES[:size]), separators=(",", ":"))
    with admin.transaction(force_rollback=True):
        # Empties the tables' files, and is undone with the rest.
        admin.execute(b"TRUNCATE stackmgr.managers, stackmgr.stacks CASCADE")
        insert(admin, range(1), range(100), range(1), allocation)
        assert admin.execute(COMPRESSED).fetchone() == (0,)
        moves = admin.execute(UPDATE).fetchall()
        assert len(moves) >= 3
        assert all(old == new for old, new in moves)


def test_create_does_not_lock_its_manager(client, admin):
    """A lock of the row makes a multixact wherever two creates of one manager meet."""
    client.create(configuration())
    query = b"SELECT xmax::text FROM stackmgr.managers WHERE external_id = %s::text::uuid"
    assert admin.execute(query, [client.external_id]).fetchone() == ("0",)
