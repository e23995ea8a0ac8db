-- stack_list: one page of a manager's stacks, newest first, strictly after a position.
-- params:  manager_id uuid, after_created_at timestamptz, after_stack_id uuid, row_limit integer
-- returns: up to row_limit rows (stack_id, revision_id, name, allocation, preset, created_at)
-- index:   stacks_page
-- locks:   none
-- called by: stacks.list_page
-- why:     the first page starts after the greatest position there is, so that first and later pages
--          share one statement and one plan; the row comparison is one condition of the index. Unqualified,
--          stack_id in ORDER BY would be the text that is returned, which the index does not order.
SELECT
    stack_id::text,
    revision_id::text,
    name,
    allocation::text,
    preset,
    created_at
FROM stackmgr.stacks AS stacks
WHERE manager_id = %(manager_id)s::uuid
    AND (created_at, stack_id) < (%(after_created_at)s::timestamptz, %(after_stack_id)s::uuid)
ORDER BY stacks.created_at DESC, stacks.stack_id DESC
LIMIT %(row_limit)s::integer;
