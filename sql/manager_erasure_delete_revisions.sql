-- manager_erasure_delete_revisions: delete and count a manager's revisions at given positions of the heap.
-- params:  manager_id uuid, positions tid[]
-- returns: one row (revisions): all that were deleted so far
-- index:   none (the positions, and the record by its key)
-- locks:   the deleted rows, the record's row
-- called by: operate.erasure.erase
WITH deleted AS (
    DELETE FROM stackmgr.stack_revisions
    WHERE manager_id = %(manager_id)s::uuid
        AND ctid = ANY (%(positions)s::tid[])
    RETURNING stack_id
)
UPDATE stackmgr.manager_erasures
SET revisions = revisions + (SELECT count(stack_id) FROM deleted)
WHERE manager_id = %(manager_id)s::uuid
RETURNING revisions;
