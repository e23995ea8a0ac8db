-- audit_managers: list the next managers in the order of their ids.
-- params:  after uuid or null, row_limit integer
-- returns: up to row_limit rows (manager_id, identity_id)
-- index:   none (the whole table, some rows at a time, by its primary key where it is large)
-- locks:   none
-- called by: commands.audit.command.Audit.next_managers
SELECT manager_id::text, identity_id
FROM stackmgr.managers AS managers
WHERE %(after)s::uuid IS NULL OR manager_id > %(after)s::uuid
ORDER BY managers.manager_id
LIMIT %(row_limit)s::integer;
