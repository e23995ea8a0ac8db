-- manager_erasure_begin: delete a manager's binding, revoke its keys, and record that its data are being erased.
-- params:  manager_id uuid, external_id uuid
-- returns: one row (manager_id); no row when the manager is neither bound to that external id nor recorded with it
-- index:   managers_pkey or managers_external_id_key, manager_rebindings_pkey, api_keys_external_id,
--          manager_erasures_pkey, manager_erasures_pkey (arbiter)
-- locks:   the manager's row, the rows of its keys and rebindings, the record's row
-- called by: operate.erasure.erase
-- why:     committed before any row is deleted: no request that starts afterwards finds the manager, also where a
--          remote verifier still accepts the key. A repeated run continues the record of an interrupted one.
WITH manager AS (
    DELETE FROM stackmgr.managers
    WHERE manager_id = %(manager_id)s::uuid
        AND external_id = %(external_id)s::uuid
    RETURNING manager_id, external_id
),
deleted_rebindings AS (
    DELETE FROM stackmgr.manager_rebindings
    WHERE manager_id = (SELECT manager_id FROM manager)
),
revoked AS (
    UPDATE stackmgr.api_keys AS api_keys
    SET revoked_at = coalesce(api_keys.revoked_at, now())
    FROM manager
    WHERE api_keys.external_id = manager.external_id
)
INSERT INTO stackmgr.manager_erasures (manager_id, external_id, begun_at)
SELECT manager_id, external_id, now()
FROM manager
UNION ALL
SELECT manager_id, external_id, begun_at
FROM stackmgr.manager_erasures
WHERE manager_id = %(manager_id)s::uuid
    AND external_id = %(external_id)s::uuid
    AND NOT EXISTS (SELECT FROM manager)
ON CONFLICT (manager_id) DO UPDATE
SET external_id = excluded.external_id, begun_at = excluded.begun_at, finished_at = NULL
RETURNING manager_id::text;
