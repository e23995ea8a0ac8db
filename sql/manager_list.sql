-- manager_list: list managers with their bindings and holds, oldest first, from one of them on.
-- params:  first uuid or null, row_limit integer or null
-- returns: many (manager_id, external_id, identity_id, created_at, held_at, held_by, hold_reason); none if there is no
--          manager with the id first
-- index:   none (the whole table, for an operator)
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
WHERE
    %(first)s::uuid IS NULL
    OR (managers.created_at, managers.manager_id) >= (
        SELECT first_manager.created_at, first_manager.manager_id
        FROM stackmgr.managers AS first_manager
        WHERE first_manager.manager_id = %(first)s::uuid
    )
ORDER BY managers.created_at, managers.manager_id
LIMIT %(row_limit)s::integer;
