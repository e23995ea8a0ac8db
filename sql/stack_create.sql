-- stack_create: insert the receipt of an Idempotency-Key, its stack and the first revision, if the caller's API key is
--          valid.
-- params:  manager_id uuid, external_id uuid, identity_id text, key_digest bytea or null, idempotency_key text,
--          input_digest bytea, stack_id uuid, revision_id uuid, name text, allocation json, preset text,
--          request_id text, key_id text or null
-- returns: one row (stack_id or null, used_this_hour), with null when the Idempotency-Key was already used; no row when
--          stackmgr.caller has none
-- index:   managers_pkey or managers_external_id_key or managers_identity_id_key, api_keys_key_digest_hash,
--          creation_receipts_pkey (arbiter)
-- locks:   waits for another transaction that holds the same key; takes no lock on the API key: a key revoked while
--          this statement runs may still write
-- called by: stacks.repository.create_operation
-- why:     after ON CONFLICT DO NOTHING the existing receipt may be invisible to this statement's snapshot, so
--          receipt_find reads it in a later one. No parameter has the type of a domain: a kept statement keeps the
--          numbers of its parameters' types, and the domains get new ones when the schema is restored.
WITH caller AS MATERIALIZED (
    SELECT used_this_hour
    FROM stackmgr.caller(
        %(manager_id)s::uuid, %(external_id)s::uuid, %(identity_id)s::text, %(key_digest)s::bytea
    )
),
receipt AS (
    INSERT INTO stackmgr.creation_receipts (manager_id, idempotency_key, input_digest, stack_id)
    SELECT
        %(manager_id)s::uuid,
        %(idempotency_key)s::text,
        %(input_digest)s::bytea,
        %(stack_id)s::uuid
    FROM caller
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
        %(name)s::text::stackmgr.stack_name,
        %(allocation)s::json::stackmgr.allocation,
        %(preset)s::text::stackmgr.preset
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
SELECT
    stack.stack_id::text,
    caller.used_this_hour
FROM caller
LEFT JOIN stack ON true;
