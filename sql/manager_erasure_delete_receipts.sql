-- manager_erasure_delete_receipts: delete a number of a manager's creation receipts, and count them in the record.
-- params:  manager_id uuid, row_limit integer
-- returns: one row (receipts): how many were deleted; 0 when there are no more
-- index:   creation_receipts_pkey, manager_erasures_pkey
-- locks:   the deleted rows, the record's row
-- called by: access.erasure.erase
-- why:     all receipts are deleted and committed before the first stack. No index serves the receipts' foreign
--          key from the stack's side: each deleted stack reads what is left of the manager's receipts.
WITH doomed AS MATERIALIZED (
    SELECT idempotency_key
    FROM stackmgr.creation_receipts
    WHERE manager_id = %(manager_id)s::uuid
    ORDER BY idempotency_key
    LIMIT %(row_limit)s::integer
),
deleted AS (
    DELETE FROM stackmgr.creation_receipts
    WHERE manager_id = %(manager_id)s::uuid
        AND idempotency_key IN (SELECT idempotency_key FROM doomed)
    RETURNING manager_id
),
counted AS (
    SELECT count(manager_id) AS receipts
    FROM deleted
)
UPDATE stackmgr.manager_erasures AS erasures
SET receipts = erasures.receipts + counted.receipts
FROM counted
WHERE erasures.manager_id = %(manager_id)s::uuid
RETURNING counted.receipts;
