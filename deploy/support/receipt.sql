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

SELECT (
    SELECT manager_id FROM stackmgr.managers
    WHERE external_id = :'manager'::uuid OR manager_id = :'manager'::uuid
) AS owner \gset
\if :{?owner} \else
DO $$ BEGIN RAISE EXCEPTION 'no such manager'; END $$;
\endif

\x on
SELECT
    receipts.idempotency_key, receipts.created_at, receipts.stack_id, first.request_id, first.key_id,
    first.name, first.preset, first.allocation,
    encode(receipts.input_digest, 'hex') AS input_digest, stacks.name AS current_name, stacks.revision_number
FROM stackmgr.creation_receipts AS receipts
LEFT JOIN stackmgr.stacks AS stacks
    ON stacks.manager_id = receipts.manager_id AND stacks.stack_id = receipts.stack_id
LEFT JOIN stackmgr.stack_revisions AS first
    ON first.manager_id = receipts.manager_id AND first.stack_id = receipts.stack_id AND first.revision_number = 1
WHERE receipts.manager_id = :'owner'::uuid AND receipts.idempotency_key = :'key';
COMMIT;
