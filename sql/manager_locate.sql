-- manager_locate: return the managers that an id names: a manager id or external id, or an identity id.
-- params:  any_id uuid or null, identity_id text or null
-- returns: up to three rows (manager_id, external_id, identity_id, created_at)
-- index:   managers_pkey, managers_external_id_key, managers_identity_id_key
-- locks:   none
-- called by: operate.managers._locate
-- why:     an operator copies either UUID from a table or a log line.
SELECT
    manager_id::text,
    external_id::text,
    identity_id,
    created_at
FROM stackmgr.managers AS managers
WHERE manager_id = %(any_id)s::uuid
    OR external_id = %(any_id)s::uuid
    OR identity_id = %(identity_id)s::text
ORDER BY managers.created_at, managers.manager_id;
