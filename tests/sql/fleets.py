"""Managers and stacks by number, for tests of plans and of storage; manager 0 is the one that requests."""

from hashlib import sha256
from uuid import UUID

import psycopg

from tests.support.examples import ADDRESSES, COLUMN_NAMES, COLUMN_VALUES, STORED, allocation_text

MANAGER = str(UUID(int=0))
CALLER = {
    "manager_id": MANAGER, "external_id": MANAGER, "identity_id": MANAGER,
    "key_digest": sha256(MANAGER.encode()).digest(),
}  # fmt: skip
ALLOCATION = allocation_text((ADDRESSES[0], 10000))
# One value of each type is checked, once, and given to every row.  Three stacks at a time share a
# moment, and the rows lie in no order of time.
_INSERT = f"""
WITH configuration ({COLUMN_NAMES}) AS MATERIALIZED (SELECT {COLUMN_VALUES}), manager AS (
    SELECT lpad(to_hex(n), 32, '0')::uuid AS id
    FROM generate_series(%(first_manager)s::int, %(last_manager)s) AS n
), managers AS (
    INSERT INTO stackmgr.managers (manager_id, external_id, identity_id) SELECT id, id, id FROM manager
), keys AS (
    INSERT INTO stackmgr.api_keys (key_digest, key_id, external_id, identity_id, last_four)
    SELECT sha256(id::text::bytea), gen_random_uuid(), id, id, 'abcd' FROM manager
), slots AS (
    INSERT INTO stackmgr.api_key_quota_slots (quota_id, slot) SELECT id, generate_series(1, 3) FROM manager
), stacks AS (
    INSERT INTO stackmgr.stacks (
        manager_id, stack_id, revision_id, revision_number, {COLUMN_NAMES}, created_at
    )
    SELECT
        lpad(to_hex(%(first_holder)s::int + n %% %(holders)s), 32, '0')::uuid,
        lpad(to_hex(n), 32, '0')::uuid,
        gen_random_uuid(), 1, {COLUMN_NAMES}, now() - n * 7919 %% 200000 / 3 * interval '1 s'
    FROM configuration, generate_series(%(first)s::int, %(last)s) AS n
    RETURNING manager_id, stack_id, revision_id, {COLUMN_NAMES}
), revisions AS (
    INSERT INTO stackmgr.stack_revisions (
        manager_id, stack_id, revision_number, revision_id, {COLUMN_NAMES}, identity_id, request_id, key_id
    )
    SELECT manager_id, stack_id, 1, revision_id, {COLUMN_NAMES}, 'one', 'request', manager_id::text
    FROM stacks
)
INSERT INTO stackmgr.creation_receipts (manager_id, idempotency_key, input_digest, stack_id)
SELECT manager_id, stack_id::text, sha256('x'), stack_id FROM stacks
"""


def insert(
    admin: psycopg.Connection, holders: range, stacks: range, managers=range(0), allocation=ALLOCATION
):
    # The keys of the rows are right by construction; checking them takes a third of the time.
    admin.execute(b"SET session_replication_role = replica")
    given = STORED._replace(name="A name of usual length", allocation=allocation)._asdict() | {
        "first_manager": managers.start, "last_manager": managers.stop - 1, "first_holder": holders.start,
        "holders": len(holders), "first": stacks.start, "last": stacks.stop - 1,
    }  # fmt: skip
    admin.execute(_INSERT, given)
