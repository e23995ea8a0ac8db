-- manager_hold_release: end the hold of a manager that is in force.
-- params:  manager_id uuid
-- returns: one row (manager_id, held_at, held_by, reason, released_at, released_by); no row if the manager is not held
-- index:   manager_holds_in_force
-- locks:   the hold's row
-- called by: operate.erasure.release
UPDATE stackmgr.manager_holds
SET released_at = clock_timestamp(), released_by = session_user, bound_manager_id = NULL
WHERE manager_id = %(manager_id)s::uuid
    AND released_at IS NULL
RETURNING manager_id::text, held_at, held_by, reason, released_at, released_by;
