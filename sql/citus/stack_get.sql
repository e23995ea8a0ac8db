-- stack_get: return the current state of one stack, on one node of Citus.
-- params:  manager_id uuid, stack_id uuid
-- returns: at most one row (stack_id, revision_id, name, allocation, preset, used_this_hour)
-- index:   stacks_pkey
-- locks:   none
-- called by: stacks.repository.get_operation
-- why:     keys and managers are on the coordinator, so that the plain statement would join two nodes: the key is
--          verified before.
SELECT
    stack_id::text,
    revision_id::text,
    name::text,
    allocation::text,
    preset::text,
    true AS used_this_hour
FROM stackmgr.stacks
WHERE manager_id = %(manager_id)s::uuid
    AND stack_id = %(stack_id)s::uuid;
