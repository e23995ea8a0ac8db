-- manager_erasure_delete_stacks: delete a manager's stacks at given positions of the heap.
-- params:  manager_id uuid, positions tid[]
-- returns: one row (stacks): how many were deleted
-- index:   none (the positions)
-- locks:   the deleted rows
-- called by: operate.erasure.erase
-- why:     the receipts and the revisions are deleted before. No index of the receipts begins with the stack: for each
--          deleted stack, the check of their foreign key reads all index entries of the manager's receipts.
WITH deleted AS (
    DELETE FROM stackmgr.stacks
    WHERE manager_id = %(manager_id)s::uuid
        AND ctid = ANY (%(positions)s::tid[])
    RETURNING stack_id
)
SELECT count(stack_id) AS stacks
FROM deleted;
