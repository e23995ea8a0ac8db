-- stack_create: insert the receipt of an Idempotency-Key, its stack and the first revision, on one node of Citus.
-- params:  manager_id uuid, idempotency_key text, input_digest bytea, stack_id uuid, revision_id uuid,
--          name text, allocation text, preset text,
--          identity_id text, request_id text, key_id text or null
-- returns: one row (stack_id) when the key was new; no row when it was already used
-- index:   none (the function's: creation_receipts_pkey)
-- locks:   waits for another transaction that holds the same key
-- called by: stacks.repository.create_operation
-- why:     the key is verified before, as for stack_get. Citus would run the inserts of the plain statement one after the other, in a distributed transaction.
--          It sends this one to the node that has the manager's rows. Text is converted there, once.
SELECT stack_id
FROM stackmgr.create_stack(
    %(manager_id)s::uuid,
    %(idempotency_key)s::text,
    %(input_digest)s::bytea,
    %(stack_id)s::uuid,
    %(revision_id)s::uuid,
    %(name)s::text,
    %(allocation)s::text,
    %(preset)s::text,
    %(identity_id)s::text,
    %(request_id)s::text,
    %(key_id)s::text
);
