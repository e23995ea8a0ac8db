-- manager_erasure_delete_stacks: delete a number of a manager's stacks with their revisions, and count both.
-- params:  manager_id uuid, row_limit integer
-- returns: one row (stacks): how many stacks were deleted; 0 when there are no more
-- index:   stacks_pkey or stacks_page, stack_revisions_pkey, stacks_pkey, manager_erasures_pkey
-- locks:   the deleted rows, the record's row
-- called by: access.erasure.erase
-- why:     the receipts are deleted before; the foreign key of the revisions is checked at the end of the statement.
WITH doomed AS MATERIALIZED (
    SELECT stack_id
    FROM stackmgr.stacks
    WHERE manager_id = %(manager_id)s::uuid
    LIMIT %(row_limit)s::integer
),
deleted_revisions AS (
    DELETE FROM stackmgr.stack_revisions
    WHERE manager_id = %(manager_id)s::uuid
        AND stack_id IN (SELECT stack_id FROM doomed)
    RETURNING stack_id
),
deleted_stacks AS (
    DELETE FROM stackmgr.stacks
    WHERE manager_id = %(manager_id)s::uuid
        AND stack_id IN (SELECT stack_id FROM doomed)
    RETURNING stack_id
),
counted AS (
    SELECT
        (SELECT count(stack_id) FROM deleted_stacks) AS stacks,
        (SELECT count(stack_id) FROM deleted_revisions) AS revisions
)
UPDATE stackmgr.manager_erasures AS erasures
SET
    stacks = erasures.stacks + counted.stacks,
    revisions = erasures.revisions + counted.revisions
FROM counted
WHERE erasures.manager_id = %(manager_id)s::uuid
RETURNING counted.stacks;
