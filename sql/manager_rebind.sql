-- manager_rebind: bind a manager to another external id, identity id, or both, and record it.
-- params:  manager_id uuid, old_external_id uuid, old_identity_id text, new_external_id uuid or null,
--          new_identity_id text or null
-- returns: one row (manager_id, external_id, identity_id) as bound now; no row if the saved binding is not
--          the old one
-- index:   managers_pkey or managers_external_id_key or managers_identity_id_key
-- locks:   FOR UPDATE on the manager's row, which no request locks or waits for
-- called by: operate.managers._rebind
-- why:     the unique indexes reject ids that another manager is bound to.
WITH rebound AS (
    UPDATE stackmgr.managers
    SET
        external_id = coalesce(%(new_external_id)s::uuid, external_id),
        identity_id = coalesce(%(new_identity_id)s::text, identity_id)
    WHERE manager_id = %(manager_id)s::uuid
        AND external_id = %(old_external_id)s::uuid
        AND identity_id = %(old_identity_id)s::text
    RETURNING manager_id, external_id, identity_id
),
recorded AS (
    INSERT INTO stackmgr.manager_rebindings (
        manager_id, old_external_id, old_identity_id, new_external_id, new_identity_id
    )
    SELECT
        manager_id,
        %(old_external_id)s::uuid,
        %(old_identity_id)s::text,
        external_id,
        identity_id
    FROM rebound
)
SELECT
    manager_id::text,
    external_id::text,
    identity_id
FROM rebound;
