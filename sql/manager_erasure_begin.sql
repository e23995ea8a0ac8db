-- manager_erasure_begin: revoke a manager's keys and record that its data are being erased.
-- params:  manager_id uuid, external_id uuid
-- returns: one row (manager_id); no row when the manager is not bound to that external id
-- index:   managers_pkey or managers_external_id_key, api_keys_external_id, manager_erasures_pkey (arbiter)
-- locks:   the rows of the manager's keys
-- called by: access.erasure.erase
-- why:     committed before anything is deleted, so that no request is authenticated meanwhile. A repeated run
--          continues the record of the one that was interrupted.
WITH manager AS (
    SELECT manager_id, external_id
    FROM stackmgr.managers
    WHERE manager_id = %(manager_id)s::uuid
        AND external_id = %(external_id)s::uuid
),
revoked AS (
    UPDATE stackmgr.api_keys AS api_keys
    SET revoked_at = coalesce(api_keys.revoked_at, now())
    FROM manager
    WHERE api_keys.external_id = manager.external_id
)
INSERT INTO stackmgr.manager_erasures (manager_id, external_id)
SELECT manager_id, external_id
FROM manager
ON CONFLICT (manager_id) DO UPDATE SET finished_at = NULL
RETURNING manager_id::text;
