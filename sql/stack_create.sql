-- stack_create: insert the receipt of an Idempotency-Key, its stack and the first revision.
-- params:  manager_id uuid, idempotency_key text, input_digest bytea, stack_id uuid, revision_id uuid,
--          name stackmgr.stack_name, allocation stackmgr.allocation, preset stackmgr.preset,
--          identity_id text, request_id text, key_id text or null
-- returns: one row (stack_id) when the key was new; no row when it was already used
-- index:   creation_receipts_pkey (arbiter)
-- locks:   waits for another transaction that holds the same key
-- called by: stacks.repository.create
-- why:     after ON CONFLICT DO NOTHING the existing receipt may be invisible to this statement's snapshot, so
--          receipt_find reads it in a later one.
WITH receipt AS (
    INSERT INTO stackmgr.creation_receipts (manager_id, idempotency_key, input_digest, stack_id)
    VALUES (
        %(manager_id)s::uuid,
        %(idempotency_key)s::text,
        %(input_digest)s::bytea,
        %(stack_id)s::uuid
    )
    ON CONFLICT (manager_id, idempotency_key) DO NOTHING
    RETURNING manager_id, stack_id
),
stack AS (
    INSERT INTO stackmgr.stacks (
        manager_id, stack_id, revision_id, revision_number, name, allocation, preset
    )
    SELECT
        manager_id,
        stack_id,
        %(revision_id)s::uuid,
        1,
        %(name)s::stackmgr.stack_name,
        %(allocation)s::stackmgr.allocation,
        %(preset)s::stackmgr.preset
    FROM receipt
    RETURNING manager_id, stack_id, revision_number, revision_id, name, allocation, preset
),
revision AS (
    INSERT INTO stackmgr.stack_revisions (
        manager_id, stack_id, revision_number, revision_id, name, allocation, preset, identity_id, request_id,
        key_id
    )
    SELECT
        manager_id,
        stack_id,
        revision_number,
        revision_id,
        name,
        allocation,
        preset,
        %(identity_id)s::text,
        left(%(request_id)s::text, 255),
        %(key_id)s::text
    FROM stack
)
SELECT stack_id::text
FROM stack;
