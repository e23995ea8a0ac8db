-- manager_erasure_finish: check that no row of an erased manager is left, delete its keys and quotas, end the record.
-- params:  manager_id uuid, external_id uuid
-- returns: one row (stacks, revisions, receipts, keys): what was deleted, keys in this statement; no row while the
--          manager has stacks
-- index:   stacks_pkey or stacks_page, api_keys_external_id, api_key_quota_slots_pkey, api_key_quota_queues_pkey,
--          manager_erasures_pkey
-- locks:   the deleted rows, the record's row
-- called by: operate.erasure.erase
-- why:     no foreign key rejects a stack without a manager. Revisions and receipts have one to their stack. A key
--          issued since the erasure began belongs to a new manager.
WITH finished AS (
    UPDATE stackmgr.manager_erasures
    SET finished_at = now()
    WHERE manager_id = %(manager_id)s::uuid
        AND NOT EXISTS (
            SELECT stack_id
            FROM stackmgr.stacks
            WHERE manager_id = %(manager_id)s::uuid
        )
    RETURNING begun_at, stacks, revisions, receipts
),
deleted_keys AS (
    DELETE FROM stackmgr.api_keys AS api_keys
    USING finished
    WHERE external_id = %(external_id)s::uuid
        AND created_at <= finished.begun_at
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
SELECT
    stacks,
    revisions,
    receipts,
    (SELECT count(key_id) FROM deleted_keys) AS keys
FROM finished;
