-- receipt_find: return the receipt of an Idempotency-Key, and the current state of its stack.
-- params:  manager_id uuid, idempotency_key text
-- returns: at most one row (input_digest, lsn, stack_id, revision_id, name, allocation, preset)
-- index:   creation_receipts_pkey, stacks_pkey
-- locks:   none
-- called by: stacks.repository.create
-- why:     the row may be visible before a standby has it: its commit was waiting for one when the primary
--          restarted or the backend was terminated. The empty message makes this transaction write WAL, so
--          that its own commit waits until the synchronous standby has everything before it. This needs no
--          logical decoding.
--          The subquery, not a join, so that no kept plan reads all stacks of a manager.
WITH receipt AS MATERIALIZED (
    SELECT stack_id, input_digest
    FROM stackmgr.creation_receipts
    WHERE manager_id = %(manager_id)s::uuid
        AND idempotency_key = %(idempotency_key)s::text
)
SELECT
    receipt.input_digest,
    pg_logical_emit_message(true, 'stackmgr'::text, ''::text) AS lsn,
    stacks.stack_id::text,
    stacks.revision_id::text,
    stacks.name::text,
    stacks.allocation::text,
    stacks.preset::text
FROM receipt
CROSS JOIN stackmgr.stacks AS stacks
WHERE stacks.manager_id = %(manager_id)s::uuid
    AND stacks.stack_id = (SELECT stack_id FROM receipt);
