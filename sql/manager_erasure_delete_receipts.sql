-- manager_erasure_delete_receipts: delete and count a manager's creation receipts at given positions of the heap.
-- params:  manager_id uuid, positions tid[]
-- returns: one row (receipts): all that were deleted so far
-- index:   none (the positions, and the record by its key)
-- locks:   the deleted rows, the record's row
-- called by: operate.erasure.erase
WITH deleted AS (
    DELETE FROM stackmgr.creation_receipts
    WHERE manager_id = %(manager_id)s::uuid
        AND ctid = ANY (%(positions)s::tid[])
    RETURNING stack_id
)
UPDATE stackmgr.manager_erasures
SET receipts = receipts + (SELECT count(stack_id) FROM deleted)
WHERE manager_id = %(manager_id)s::uuid
RETURNING receipts;
