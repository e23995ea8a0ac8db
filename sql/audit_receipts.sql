-- audit_receipts: list the creation receipts of some managers, in the order of their stacks.
-- params:  after uuid or null, last uuid or null
-- returns: many (manager_id, stack_id, input_digest)
-- index:   none (all of the table in the end, by its primary key, and a sort)
-- locks:   none
-- called by: operate.audit.ranges.audit_range
SELECT manager_id::text, stack_id::text, input_digest
FROM stackmgr.creation_receipts AS creation_receipts
WHERE (%(after)s::uuid IS NULL OR manager_id > %(after)s::uuid)
    AND (%(last)s::uuid IS NULL OR manager_id <= %(last)s::uuid)
ORDER BY creation_receipts.manager_id, creation_receipts.stack_id;
