-- stack_list: return one page of a manager's stacks, newest first, strictly after a position, without long
--          names, on one node of Citus.
-- params:  name_bytes integer, manager_id uuid, after_created_at timestamptz, after_stack_id uuid, row_limit integer
-- returns: up to row_limit rows (stack_id, revision_id, name or null, allocation, preset, used_this_hour, created_at)
-- index:   stacks_page
-- locks:   none
-- called by: stacks.repository.list_operation
-- why:     as for stack_get.
SELECT
    stack_id::text,
    revision_id::text,
    CASE WHEN octet_length(name) <= %(name_bytes)s::integer THEN name::text END AS name,
    allocation::text,
    preset::text,
    true AS used_this_hour,
    created_at
FROM stackmgr.stacks AS stacks
WHERE manager_id = %(manager_id)s::uuid
    AND (created_at, stack_id) < (%(after_created_at)s::timestamptz, %(after_stack_id)s::uuid)
ORDER BY stacks.created_at DESC, stacks.stack_id DESC
LIMIT %(row_limit)s::integer;
