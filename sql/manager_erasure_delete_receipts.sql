-- manager_erasure_delete_receipts: delete a manager's creation receipts at given positions of the heap.
-- params:  manager_id uuid, positions tid[]
-- returns: one row (receipts): how many were deleted
-- index:   none (the positions)
-- locks:   the deleted rows
-- called by: operate.erasure.erase
WITH deleted AS (
    DELETE FROM stackmgr.creation_receipts
    WHERE manager_id = %(manager_id)s::uuid
        AND ctid = ANY (%(positions)s::tid[])
    RETURNING stack_id
)
SELECT count(stack_id) AS receipts
FROM deleted;
