-- receipt_locate: return the receipts of a manager by Idempotency-Key or by stack.
-- params:  manager_id uuid, idempotency_key text or null, stack_id uuid or null
-- returns: many (idempotency_key, input_digest, stack_id, created_at): one for a key, one for a stack
-- index:   none (creation_receipts_pkey for a key, every receipt of the manager for a stack)
-- locks:   none
-- called by: commands.revisions.receipt
-- why:     for an operator, whose transaction may not write WAL as receipt_find does. Planned with the values of its
--          parameters, one that is null costs nothing. An index on stack_id would cost every create.
SELECT
    idempotency_key,
    input_digest,
    stack_id::text,
    created_at
FROM stackmgr.creation_receipts
WHERE manager_id = %(manager_id)s::uuid
    AND (
        idempotency_key = %(idempotency_key)s::text
        OR stack_id = %(stack_id)s::uuid
    )
ORDER BY created_at;
