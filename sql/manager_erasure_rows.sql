-- manager_erasure_rows: list where a manager's receipts, revisions and stacks are, in the order of deletion.
-- params:  manager_id uuid
-- returns: many (step, position, total): step 1 for receipts, 2 for revisions, 3 for stacks; total of all rows
-- index:   none (each row of the manager)
-- locks:   none
-- called by: operate.erasure.erase
-- why:     in the order of the heap, so that each page is written once. The stacks come last: the others refer to
--          them.
WITH found AS (
    SELECT 1 AS step, ctid AS position
    FROM stackmgr.creation_receipts
    WHERE manager_id = %(manager_id)s::uuid
    UNION ALL
    SELECT 2 AS step, ctid AS position
    FROM stackmgr.stack_revisions
    WHERE manager_id = %(manager_id)s::uuid
    UNION ALL
    SELECT 3 AS step, ctid AS position
    FROM stackmgr.stacks
    WHERE manager_id = %(manager_id)s::uuid
)
SELECT step, position::text, count(step) OVER () AS total
FROM found
ORDER BY found.step, found.position;
