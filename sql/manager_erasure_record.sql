-- manager_erasure_record: add the counts of a batch to the record of an erasure.
-- params:  manager_id uuid, stacks bigint, revisions bigint, receipts bigint
-- returns: one row (stacks, revisions, receipts): all that were deleted so far
-- index:   manager_erasures_pkey
-- locks:   the record's row
-- called by: operate.erasure.erase
-- why:     in the transaction of the batch, so that a run that is repeated counts each row once.
UPDATE stackmgr.manager_erasures
SET
    stacks = stacks + %(stacks)s::bigint,
    revisions = revisions + %(revisions)s::bigint,
    receipts = receipts + %(receipts)s::bigint
WHERE manager_id = %(manager_id)s::uuid
RETURNING stacks, revisions, receipts;
