-- stack_update: set the supplied fields of one stack and append the complete result as a revision.
-- params:  manager_id uuid, stack_id uuid, revision_id uuid, name stackmgr.stack_name or null,
--          allocation stackmgr.allocation or null, preset stackmgr.preset or null, identity_id text,
--          request_id text, key_id text or null, key_digest bytea or null
-- returns: one row (stack_id, revision_id, name, allocation, preset); no row when there is no such stack,
--          or when key_digest is not that of a valid API key of the manager without a quota
-- index:   stacks_pkey, api_keys_key_digest_hash, managers_pkey or managers_external_id_key or
--          managers_identity_id_key
-- locks:   FOR NO KEY UPDATE on the stack row; concurrent updates of one stack are serialized; none on the API
--          key: one that is revoked while this statement runs may still write
-- called by: stacks.repository.plan_update
-- why:     UPDATE reads the row again once it holds the lock, so that omitted fields are copied from the newest
--          committed revision. A join to stack_revisions would read the older snapshot. The
--          key_digest is as in stack_create.
WITH updated AS (
    UPDATE stackmgr.stacks
    SET
        revision_id = %(revision_id)s::uuid,
        revision_number = revision_number + 1,
        name = coalesce(%(name)s::stackmgr.stack_name, name),
        allocation = coalesce(%(allocation)s::stackmgr.allocation, allocation),
        preset = coalesce(%(preset)s::stackmgr.preset, preset)
    WHERE manager_id = %(manager_id)s::uuid
        AND stack_id = %(stack_id)s::uuid
        AND (%(key_digest)s::bytea IS NULL
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
        )
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
    stack_id::text,
    revision_id::text,
    name,
    allocation::text,
    preset
FROM updated;
