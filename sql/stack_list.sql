-- stack_list: return one page of a manager's stacks, newest first, strictly after a position, without long names.
-- params:  manager_id uuid, after_created_at timestamptz, after_stack_id uuid, row_limit integer, page_bytes integer
-- returns: up to row_limit rows (stack_id, revision_id, name or null, allocation, preset, created_at)
-- index:   stacks_page
-- locks:   none
-- called by: stacks.repository.plan_list
-- why:     the first page starts after the greatest possible position, so that all pages share one statement
--          and one plan. The row comparison is one index condition. In ORDER BY, an unqualified stack_id
--          would be the output column, which is text and not in the index. A name longer than a hundredth of
--          page_bytes is null, so that 100 stacks with their names are a page, whatever its names:
--          stack_list_long_names reads any other. A long name is not fetched from its TOAST table for its length.
SELECT
    stack_id::text,
    revision_id::text,
    CASE WHEN octet_length(name) <= %(page_bytes)s::integer / 100 THEN name::text END AS name,
    allocation::text,
    preset::text,
    created_at
FROM stackmgr.stacks AS stacks
WHERE manager_id = %(manager_id)s::uuid
    AND (created_at, stack_id) < (%(after_created_at)s::timestamptz, %(after_stack_id)s::uuid)
ORDER BY stacks.created_at DESC, stacks.stack_id DESC
LIMIT %(row_limit)s::integer;
