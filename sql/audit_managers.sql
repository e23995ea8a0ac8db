-- audit_managers: list some managers in the order of their ids.
-- params:  after uuid or null, last uuid or null, row_limit integer or null
-- returns: many (manager_id, identity_id)
-- index:   none (the whole table, some rows at a time, by its primary key where it is large)
-- locks:   none
-- called by: operate.audit.ranges.ranges, operate.audit.ranges.audit_range
SELECT manager_id::text, identity_id
FROM stackmgr.managers AS managers
WHERE (%(after)s::uuid IS NULL OR manager_id > %(after)s::uuid)
    AND (%(last)s::uuid IS NULL OR manager_id <= %(last)s::uuid)
ORDER BY managers.manager_id
LIMIT %(row_limit)s::integer;
