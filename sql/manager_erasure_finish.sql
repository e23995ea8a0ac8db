-- manager_erasure_finish: check that no row of an erased manager is left, delete its keys and quotas, end the record.
-- params:  manager_id uuid, external_id uuid
-- returns: one row (stacks, revisions, receipts, keys): what was deleted, by earlier runs too; no row while the manager
--          has stacks
-- index:   stacks_pkey or stacks_page, api_keys_external_id, api_key_quota_slots_pkey, api_key_quota_queues_pkey,
--          manager_erasures_pkey
-- locks:   the deleted rows, the record's row
-- called by: operate.erasure.erase
-- why:     no foreign key rejects a stack without a manager. Revisions and receipts have one to their stack. A key
--          issued since the erasure began belongs to a new manager.
WITH record AS MATERIALIZED (
    SELECT begun_at
    FROM stackmgr.manager_erasures
    WHERE manager_id = %(manager_id)s::uuid
        AND NOT EXISTS (
            SELECT stack_id
            FROM stackmgr.stacks
            WHERE manager_id = %(manager_id)s::uuid
        )
),
deleted_keys AS (
    DELETE FROM stackmgr.api_keys AS api_keys
    USING record
    WHERE external_id = %(external_id)s::uuid
        AND created_at <= record.begun_at
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
SET finished_at = now(), keys = keys + (SELECT count(key_id) FROM deleted_keys)
WHERE manager_id = %(manager_id)s::uuid
    AND EXISTS (SELECT FROM record)
RETURNING stacks, revisions, receipts, keys;
