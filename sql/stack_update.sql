-- stack_update: set the supplied fields of one stack and append the complete result as a revision, if the caller's API
--          key is valid.
-- params:  manager_id uuid, external_id uuid, identity_id text, key_digest bytea or null, revision_id uuid,
--          name text or null, allocation json or null, preset text or null, stack_id uuid,
--          request_id text, key_id text or null
-- returns: one row (stack_id or null, revision_id, name, allocation, preset, used_this_hour), with nulls when there is no
--          such stack; no row when stackmgr.caller has none
-- index:   managers_pkey or managers_external_id_key or managers_identity_id_key, api_keys_key_digest_hash,
--          stacks_pkey
-- locks:   FOR NO KEY UPDATE on the stack row; concurrent updates of one stack are serialized; takes no
--          lock on the API key: a key revoked while this statement runs may still write
-- called by: stacks.repository.update_operation
-- why:     UPDATE reads the row again once it holds the lock, so that omitted fields are copied from the newest
--          committed revision. A join to stack_revisions would read the older snapshot. For the types of
--          parameters see stack_create.
WITH caller AS MATERIALIZED (
    SELECT used_this_hour
    FROM stackmgr.caller(
        %(manager_id)s::uuid, %(external_id)s::uuid, %(identity_id)s::text, %(key_digest)s::bytea
    )
),
updated AS (
    UPDATE stackmgr.stacks
    SET
        revision_id = %(revision_id)s::uuid,
        revision_number = revision_number + 1,
        name = coalesce(%(name)s::text::stackmgr.stack_name, name),
        allocation = coalesce(%(allocation)s::json::stackmgr.allocation, allocation),
        preset = coalesce(%(preset)s::text::stackmgr.preset, preset)
    WHERE manager_id = %(manager_id)s::uuid
        AND stack_id = %(stack_id)s::uuid
        AND EXISTS (SELECT FROM caller)
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
    FROM updated
)
SELECT
    updated.stack_id::text,
    updated.revision_id::text,
    updated.name::text,
    updated.allocation::text,
    updated.preset::text,
    caller.used_this_hour
FROM caller
LEFT JOIN updated ON true;
