-- manager_list: list managers with their bindings, oldest first, from one of them on.
-- params:  first uuid or null, row_limit integer or null
-- returns: many (manager_id, external_id, identity_id, created_at); none if there is no manager with the id first
-- index:   none (the whole table, for an operator)
-- locks:   none
-- called by: operate.managers._list
SELECT
    manager_id::text,
    external_id::text,
    identity_id,
    created_at
FROM stackmgr.managers AS managers
WHERE
    %(first)s::uuid IS NULL
    OR (created_at, manager_id) >= (
        SELECT first_manager.created_at, first_manager.manager_id
        FROM stackmgr.managers AS first_manager
        WHERE first_manager.manager_id = %(first)s::uuid
    )
ORDER BY managers.created_at, managers.manager_id
LIMIT %(row_limit)s::integer;
