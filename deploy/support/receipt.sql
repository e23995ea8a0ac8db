-- receipt: show what a manager's Idempotency-Key created, and with which input: other input under it is 409.
-- params:  manager (external id or manager id), key (Idempotency-Key)
-- returns: at most one row: the receipt, with the input of the creation, and the stack's current name and revision;
--          no row if the manager has not used the key: a create with it returns 201
-- index:   managers_external_id_key, managers_pkey, creation_receipts_pkey, stack_revisions_pkey, stacks_pkey
-- locks:   none
-- called by: psql, as a login that may assume stackmgr_reader
\set ON_ERROR_STOP on \set QUIET on \set VERBOSITY terse
\if :{?manager} \else
DO $$ BEGIN RAISE EXCEPTION 'whose key? psql -v manager=UUID -v key=KEY'; END $$;
\endif
\if :{?key} \else
DO $$ BEGIN RAISE EXCEPTION 'which key? psql -v manager=UUID -v key=KEY'; END $$;
\endif

BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY;
SET LOCAL ROLE stackmgr_reader;
SET LOCAL TimeZone = 'UTC';

\x on
SELECT
    receipts.idempotency_key, receipts.created_at, receipts.stack_id, first.request_id, first.key_id,
    first.name, first.preset, first.allocation,
    encode(receipts.input_digest, 'hex') AS input_digest, stacks.name AS current_name, stacks.revision_number
FROM stackmgr.managers AS managers
JOIN stackmgr.creation_receipts AS receipts
    ON receipts.manager_id = managers.manager_id AND receipts.idempotency_key = :'key'
LEFT JOIN stackmgr.stacks AS stacks
    ON stacks.manager_id = receipts.manager_id AND stacks.stack_id = receipts.stack_id
LEFT JOIN stackmgr.stack_revisions AS first
    ON first.manager_id = receipts.manager_id AND first.stack_id = receipts.stack_id AND first.revision_number = 1
WHERE managers.external_id = :'manager'::uuid OR managers.manager_id = :'manager'::uuid;
COMMIT;
