-- manager_hold_insert: hold a manager.
-- params:  manager_id uuid, reason text
-- returns: one row (manager_id, held_at, held_by, reason, released_at or null, released_by or null)
-- index:   managers_pkey
-- locks:   FOR KEY SHARE on the manager's row, which manager_lock has locked
-- called by: operate.erasure.hold
-- why:     a manager whose erasure has begun has no binding left to keep; the hold still stops the erasure.
INSERT INTO stackmgr.manager_holds (manager_id, reason, bound_manager_id)
VALUES (
    %(manager_id)s::uuid,
    %(reason)s::text,
    (SELECT manager_id FROM stackmgr.managers WHERE manager_id = %(manager_id)s::uuid)
)
RETURNING manager_id::text, held_at, held_by, reason, released_at, released_by;
