-- stack_create: insert the receipt of an Idempotency-Key, its stack and the first revision.
-- params:  manager_id uuid, idempotency_key text, input_digest bytea, stack_id uuid, revision_id uuid,
--          name stackmgr.stack_name, allocation stackmgr.allocation, preset stackmgr.preset,
--          identity_id text, request_id text, key_id text or null, key_digest bytea or null
-- returns: one row (stack_id) when the key was new; no row when it was already used, or when
--          key_digest is not that of a valid API key of the manager without a quota
-- index:   creation_receipts_pkey (arbiter), api_keys_key_digest_hash, managers_pkey or managers_external_id_key or
--          managers_identity_id_key
-- locks:   waits for another transaction that holds the same key; none on the API key: one that is revoked while
--          this statement runs may still write
-- called by: stacks.repository.plan_create
-- why:     after ON CONFLICT DO NOTHING the existing receipt may be invisible to this statement's snapshot, so
--          receipt_find reads it in a later one. Without a key_digest the API key has been verified before; with
--          one, api_key_verify is sent in the same round trip.
WITH receipt AS (
    INSERT INTO stackmgr.creation_receipts (manager_id, idempotency_key, input_digest, stack_id)
    SELECT
        %(manager_id)s::uuid,
        %(idempotency_key)s::text,
        %(input_digest)s::bytea,
        %(stack_id)s::uuid
    WHERE %(key_digest)s::bytea IS NULL
        OR EXISTS (
            SELECT
            FROM stackmgr.api_keys AS api_keys
            JOIN stackmgr.managers AS managers
                ON managers.external_id = api_keys.external_id
                AND managers.identity_id = api_keys.identity_id
            WHERE api_keys.key_digest = %(key_digest)s::bytea
                AND api_keys.identity_id = %(identity_id)s::text
                AND managers.manager_id = %(manager_id)s::uuid
                AND api_keys.revoked_at IS NULL
                AND (api_keys.expires_at IS NULL OR api_keys.expires_at > now())
                AND api_keys.quota_id IS NULL
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
