-- manager_erasure_delete_stacks: delete those of a manager's stacks that are at some positions of the heap.
-- params:  manager_id uuid, positions tid[]
-- returns: one row (stacks): how many were deleted
-- index:   none (the positions)
-- locks:   the deleted rows
-- called by: operate.erasure.erase
-- why:     the receipts and the revisions are deleted before. No index serves the foreign key of the receipts from the
--          stack's side: for each deleted stack, all entries that the index has of the manager's receipts are read.
WITH deleted AS (
    DELETE FROM stackmgr.stacks
    WHERE manager_id = %(manager_id)s::uuid
        AND ctid = ANY (%(positions)s::tid[])
    RETURNING stack_id
)
SELECT count(stack_id) AS stacks
FROM deleted;
