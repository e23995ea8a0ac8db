-- manager_hold_find: return the hold of a manager that is in force.
-- params:  manager_id uuid
-- returns: at most one row (held_at, held_by, reason)
-- index:   manager_holds_in_force
-- locks:   none
-- called by: operate.erasure.not_held
SELECT
    held_at,
    held_by,
    reason
FROM stackmgr.manager_holds
WHERE manager_id = %(manager_id)s::uuid
    AND released_at IS NULL;
