-- manager_erasure_delete_stacks: delete and count a manager's stacks at given positions of the heap.
-- params:  manager_id uuid, positions tid[]
-- returns: one row (stacks): all that were deleted so far
-- index:   none (the positions, and the record by its key)
-- locks:   the deleted rows, the record's row
-- called by: operate.erasure.erase
-- why:     the receipts and the revisions are deleted before. No index of the receipts begins with the stack: for each
--          deleted stack, the check of their foreign key reads all index entries of the manager's receipts.
WITH deleted AS (
    DELETE FROM stackmgr.stacks
    WHERE manager_id = %(manager_id)s::uuid
        AND ctid = ANY (%(positions)s::tid[])
    RETURNING stack_id
)
UPDATE stackmgr.manager_erasures
SET stacks = stacks + (SELECT count(stack_id) FROM deleted)
WHERE manager_id = %(manager_id)s::uuid
RETURNING stacks;
