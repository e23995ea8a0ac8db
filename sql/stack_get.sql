-- stack_get: return the current state of one stack.
-- params:  manager_id uuid, stack_id uuid
-- returns: at most one row (stack_id, revision_id, name, allocation, preset)
-- index:   stacks_pkey
-- locks:   none
-- called by: stacks.repository.plan_get
SELECT
    stack_id::text,
    revision_id::text,
    name::text,
    allocation::text,
    preset::text
FROM stackmgr.stacks
WHERE manager_id = %(manager_id)s::uuid
    AND stack_id = %(stack_id)s::uuid;
