"""Storage: an update stays on its page, nothing is compressed, a create writes no row of its manager."""

import psycopg
import pytest

from stackmgr.operate import migrations
from tests.sql.fleets import insert
from tests.support.clusters import cluster
from tests.support.examples import ADDRESSES, configuration
from tests.support.waiting import eventually

COMPRESSED = b"""
SELECT count(*) FROM stackmgr.stacks WHERE pg_column_size(allocation) < octet_length(allocation::text)
"""
OPTIONS = b"""
SELECT relname, reloptions FROM pg_class
WHERE oid IN ('stackmgr.stack_revisions'::regclass, 'stackmgr.creation_receipts'::regclass)
"""
INSERT_REVISIONS = b"""
INSERT INTO stackmgr.stack_revisions (
    manager_id, stack_id, revision_number, revision_id, name, allocation, preset, identity_id, request_id
)
SELECT manager_id, stack_id, number + 1, gen_random_uuid(), name, allocation, preset, 'one', 'request'
FROM stackmgr.stacks, generate_series(%s::integer, %s::integer) AS number
"""
IS_FROZEN = b"""
SELECT age(relfrozenxid) < %s AND relallvisible = relpages AND relpages > 10
FROM pg_class WHERE oid = 'stackmgr.stack_revisions'::regclass
"""
PAGES = b"SELECT pg_relation_size('stackmgr.stack_revisions') / 8192"
SEARCH = b"""
EXPLAIN (ANALYZE, FORMAT JSON)
SELECT FROM stackmgr.stack_revisions WHERE created_at > now() - interval '1 hour'
"""
# The first row of each page; a new version on the page of the old one needs no entry in any index.
UPDATE = b"""
UPDATE stackmgr.stacks SET revision_number = 2
FROM stackmgr.stacks AS old
WHERE old.ctid = stacks.ctid AND (old.ctid::text::point)[1] = 1
RETURNING (old.ctid::text::point)[0], (stacks.ctid::text::point)[0]
"""


@pytest.mark.parametrize("size", range(1, 31))
def test_a_full_page_has_room_for_an_update_whatever_the_number_of_tokens(admin, size):
    weights = [0] * (size - 1) + [10000]
    items = [
        f'{{"token_address":"{address}","weight_bps":{weight}}}'
        for address, weight in zip(ADDRESSES, weights, strict=False)
    ]
    with admin.transaction(force_rollback=True):
        # Empties the tables' files, and is undone with the rest.
        admin.execute(b"TRUNCATE stackmgr.managers, stackmgr.stacks CASCADE")
        insert(admin, range(1), range(100), range(1), f"[{','.join(items)}]")
        assert admin.execute(COMPRESSED).fetchone() == (0,)
        moves = admin.execute(UPDATE).fetchall()
        assert len(moves) >= 3
        assert all(old == new for old, new in moves)


def test_a_create_neither_locks_nor_writes_its_managers_row(client, admin):
    """A lock of the row makes a multixact wherever two creates of one manager meet."""
    client.create(configuration())
    query = b"SELECT xmax::text FROM stackmgr.managers WHERE external_id = %s::text::uuid"
    assert admin.execute(query, [client.external_id]).fetchone() == ("0",)


def test_autovacuum_visits_the_append_only_tables_every_million_rows_whatever_their_size(admin):
    expected = [
        "autovacuum_vacuum_insert_scale_factor=0",
        "autovacuum_vacuum_insert_threshold=1000000",
        "autovacuum_freeze_min_age=0",
    ]
    assert dict(admin.execute(OPTIONS)) == {"stack_revisions": expected, "creation_receipts": expected}


def test_autovacuum_freezes_new_revisions_at_its_first_visit(binaries):
    with cluster(binaries, "autovacuum_naptime=1") as url:
        migrations.apply(url)
        with psycopg.connect(url, autocommit=True) as admin:
            admin.execute(
                b"ALTER TABLE stackmgr.stack_revisions SET (autovacuum_vacuum_insert_threshold = 1000)"
            )
            insert(admin, range(1), range(100), range(1))
            admin.execute(INSERT_REVISIONS, (1, 20))
            for _ in range(200):
                admin.execute(b"SELECT pg_current_xact_id()")
            admin.execute(INSERT_REVISIONS, (21, 40))
            eventually(lambda: admin.execute(IS_FROZEN, (100,)).fetchone() == (True,))


def test_a_search_of_the_last_hour_reads_few_pages_before_any_vacuum(binaries):
    """The index summarises each range of 128 pages by itself; only the last one has no summary."""
    with cluster(binaries, "autovacuum_naptime=1s", "autovacuum_vacuum_threshold=1000000000") as url:
        migrations.apply(url)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(
                b"ALTER TABLE stackmgr.stack_revisions ALTER created_at SET DEFAULT now() - interval '2 days'"
            )
            insert(connection, range(1), range(100), range(1))
            connection.execute(INSERT_REVISIONS, [1, 250])
            connection.execute(b"ALTER TABLE stackmgr.stack_revisions ALTER created_at SET DEFAULT now()")
            connection.execute(INSERT_REVISIONS, [251, 260])
            connection.execute(b"SET enable_seqscan = off")

            def blocks() -> int:
                [[[plan]]] = connection.execute(SEARCH).fetchall()
                scan = plan["Plan"]
                assert scan["Actual Rows"] == 1000
                return scan["Lossy Heap Blocks"]

            [(pages,)] = connection.execute(PAGES)
            assert pages > 640
            eventually(lambda: blocks() <= 256, 30)
