"""The read-only role, its views, and the comments that explain the schema in psql."""

from uuid import UUID

import psycopg
import pytest

from tests.support.examples import ADDRESSES, allocation, configuration

UNCOMMENTED = b"""
SELECT 'schema' FROM pg_namespace WHERE nspname = 'stackmgr' AND obj_description(oid, 'pg_namespace') IS NULL
UNION ALL
SELECT relname::text FROM pg_class
WHERE relnamespace = 'stackmgr'::regnamespace AND relkind IN ('r', 'v')
    AND obj_description(oid, 'pg_class') IS NULL
UNION ALL
SELECT relname || '.' || attname FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid
WHERE relnamespace = 'stackmgr'::regnamespace AND relkind IN ('r', 'v') AND attnum > 0 AND NOT attisdropped
    AND col_description(attrelid, attnum) IS NULL
UNION ALL
SELECT proname::text FROM pg_proc
WHERE pronamespace = 'stackmgr'::regnamespace AND obj_description(oid, 'pg_proc') IS NULL
UNION ALL
SELECT typname::text FROM pg_type
WHERE typnamespace = 'stackmgr'::regnamespace AND typtype = 'd' AND obj_description(oid, 'pg_type') IS NULL
"""


@pytest.fixture
def reader(admin: psycopg.Connection):
    """A connection that has assumed the read-only role."""
    with admin.transaction(force_rollback=True):
        admin.execute("SET LOCAL ROLE stackmgr_reader")
        yield admin


def test_every_object_and_every_column_has_a_comment(admin):
    assert admin.execute(UNCOMMENTED).fetchall() == []


def test_current_stack_shows_each_stack_with_the_key_of_its_last_change(client, reader):
    created = client.create(configuration()).json
    updated = client.update(created["id"], {"name": "Second"}, {"X-Request-Id": "the update"}).json
    row = reader.execute(
        "SELECT external_id::text, name, revision_number, revision_id::text, request_id, tokens"
        " FROM stackmgr.current_stack WHERE stack_id = %s",
        [created["id"]],
    ).fetchone()
    assert row == (
        client.external_id,
        "Second",
        2,
        updated["current_revision_id"],
        "the update",
        len(updated["allocation"]),
    )


def test_revision_diff_shows_what_each_update_changed(client, reader):
    before = configuration(allocation=allocation((ADDRESSES[0], 4000), (ADDRESSES[1], 6000)))
    stack_id = client.create(before).json["id"]
    client.update(stack_id, {"schedule": {"preset": "hourly"}, "name": "Second"})
    client.update(stack_id, {"allocation": allocation((ADDRESSES[1], 9000), (ADDRESSES[2], 1000))})
    client.update(stack_id, {"name": "Second"})
    rows = reader.execute(
        "SELECT revision_number, name_after, preset_before, preset_after, token_address, weight_bps_before,"
        " weight_bps_after FROM stackmgr.revision_diff WHERE stack_id = %s"
        " ORDER BY revision_number, token_address",
        [stack_id],
    ).fetchall()
    weights = sorted(
        [
            (3, None, None, None, ADDRESSES[0], 4000, None),
            (3, None, None, None, ADDRESSES[1], 6000, 9000),
            (3, None, None, None, ADDRESSES[2], None, 1000),
        ],
        key=lambda row: row[4],
    )
    unchanged = (4, None, None, None, None, None, None)
    assert rows == [
        (2, "Second", before["schedule"]["preset"], "hourly", None, None, None),
        *weights,
        unchanged,
    ]


def test_receipt_age_shows_no_key(client, reader):
    stack_id = client.create(configuration(), "a key").json["id"]
    row = reader.execute(
        "SELECT external_id::text, stack_id, idempotency_key_bytes, age < '1 day' FROM stackmgr.receipt_age"
        " WHERE stack_id = %s",
        [stack_id],
    ).fetchone()
    assert row == (client.external_id, UUID(stack_id), len("a key"), True)
