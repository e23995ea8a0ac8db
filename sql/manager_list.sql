-- manager_list: list managers with their bindings and holds, oldest first.
-- params:  none
-- returns: many (manager_id, external_id, identity_id, created_at, held_at, held_by, hold_reason)
-- index:   none (every row, for an operator)
-- locks:   none
-- called by: operate.managers._list
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
ORDER BY managers.created_at, managers.manager_id;
