-- stack_list: return one page of a manager's stacks, newest first, strictly after a position.
-- params:  manager_id uuid, after_created_at timestamptz, after_stack_id uuid, row_limit integer
-- returns: up to row_limit rows (stack_id, revision_id, name, allocation, preset, created_at)
-- index:   stacks_page
-- locks:   none
-- called by: stacks.repository.plan_list, commands.find._of_manager
-- why:     the first page starts after the greatest possible position, so that all pages share one statement
--          and one plan. The row comparison is one index condition. In ORDER BY, an unqualified stack_id
--          would be the output column, which is text and not in the index.
SELECT
    stack_id::text,
    revision_id::text,
    name::text,
    allocation::text,
    preset::text,
    created_at
FROM stackmgr.stacks AS stacks
WHERE manager_id = %(manager_id)s::uuid
    AND (created_at, stack_id) < (%(after_created_at)s::timestamptz, %(after_stack_id)s::uuid)
ORDER BY stacks.created_at DESC, stacks.stack_id DESC
LIMIT %(row_limit)s::integer;
