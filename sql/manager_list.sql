-- manager_list: list the binding of every manager.
-- params:  none
-- returns: many (manager_id, external_id, identity_id)
-- index:   none (the whole table, for an operator)
-- locks:   none
-- called by: access.managers.list_all
SELECT
    manager_id::text,
    external_id::text,
    identity_id
FROM stackmgr.managers AS managers
ORDER BY managers.created_at, managers.manager_id;
