-- receipt_find: what an Idempotency-Key was used for, with the current configuration of its stack.
-- params:  manager_id uuid, idempotency_key text
-- returns: at most one row (input_digest, stack_id, revision_id, name, allocation, preset)
-- index:   creation_receipts_pkey, stacks_pkey
-- locks:   none
-- called by: stacks.create
WITH receipt AS MATERIALIZED (
    SELECT manager_id, stack_id, input_digest
    FROM stackmgr.creation_receipts
    WHERE manager_id = %(manager_id)s::uuid
        AND idempotency_key = %(idempotency_key)s::text
)
SELECT
    receipt.input_digest,
    stacks.stack_id::text,
    stacks.revision_id::text,
    stacks.name,
    stacks.allocation::text,
    stacks.preset
FROM receipt
JOIN stackmgr.stacks AS stacks
    ON stacks.manager_id = receipt.manager_id
    AND stacks.stack_id = receipt.stack_id
WHERE stacks.manager_id = %(manager_id)s::uuid;
