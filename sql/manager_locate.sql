-- manager_locate: return the managers that an id names, with their holds: a manager id or external id, or an
--          identity id.
-- params:  any_id uuid or null, identity_id text or null
-- returns: up to three rows (manager_id, external_id, identity_id, created_at, held_at, held_by, hold_reason)
-- index:   managers_pkey, managers_external_id_key, managers_identity_id_key, manager_holds_in_force
-- locks:   none
-- called by: operate.managers._show, operate.managers.find
-- why:     an operator copies either UUID from a table or a log line.
SELECT
    managers.manager_id::text,
    managers.external_id::text,
    managers.identity_id,
    managers.created_at,
    holds.held_at,
    holds.held_by,
    holds.reason AS hold_reason
FROM stackmgr.managers AS managers
LEFT JOIN stackmgr.manager_holds AS holds
    ON holds.manager_id = managers.manager_id
    AND holds.released_at IS NULL
WHERE managers.manager_id = %(any_id)s::uuid
    OR managers.external_id = %(any_id)s::uuid
    OR managers.identity_id = %(identity_id)s::text
ORDER BY managers.created_at, managers.manager_id;
