-- manager_erasure_finish: delete a manager without stacks, with its keys, quotas and rebindings.
-- params:  manager_id uuid, external_id uuid
-- returns: one row (stacks, revisions, receipts, keys): what was deleted, keys in this statement; no row while the
--          manager has stacks
-- index:   managers_pkey, stacks_pkey or stacks_page, api_keys_external_id, api_key_quota_slots_pkey,
--          api_key_quota_queues_pkey, manager_rebindings_pkey, manager_erasures_pkey
-- locks:   the deleted rows, the record's row
-- called by: access.erasure.erase
-- why:     a request that was in progress when the keys were revoked can still have created a stack.
WITH deleted_manager AS (
    DELETE FROM stackmgr.managers
    WHERE manager_id = %(manager_id)s::uuid
        AND NOT EXISTS (
            SELECT FROM stackmgr.stacks
            WHERE manager_id = %(manager_id)s::uuid
        )
    RETURNING manager_id, external_id
),
deleted_rebindings AS (
    DELETE FROM stackmgr.manager_rebindings
    WHERE manager_id = (SELECT manager_id FROM deleted_manager)
),
deleted_keys AS (
    DELETE FROM stackmgr.api_keys
    WHERE external_id = %(external_id)s::uuid
        AND EXISTS (SELECT FROM deleted_manager)
    RETURNING key_id, quota_id
),
deleted_slots AS (
    DELETE FROM stackmgr.api_key_quota_slots
    WHERE quota_id IN (SELECT quota_id FROM deleted_keys)
),
deleted_queues AS (
    DELETE FROM stackmgr.api_key_quota_queues
    WHERE quota_id IN (SELECT quota_id FROM deleted_keys)
)
UPDATE stackmgr.manager_erasures
SET finished_at = now()
WHERE manager_id = (SELECT manager_id FROM deleted_manager)
RETURNING
    stacks,
    revisions,
    receipts,
    (SELECT count(key_id) FROM deleted_keys) AS keys;
