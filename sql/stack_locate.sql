-- stack_locate: return one stack of any manager, by its id, and its manager's where that is known.
-- params:  manager_id uuid or null, stack_id uuid
-- returns: at most one row (external_id, manager_id, name, allocation, preset, revision_number, revision_id,
--          created_at)
-- index:   stacks_pkey
-- locks:   none
-- called by: commands.revisions.locate
-- why:     manager_id leads the key of stacks. It comes from the managers, so that the search costs one look
--          into the index for each manager and no index of its own; LIMIT keeps the planner from turning
--          that into a scan of the stacks.
SELECT
    managers.external_id::text,
    managers.manager_id::text,
    stack.name::text,
    stack.allocation::text,
    stack.preset::text,
    stack.revision_number,
    stack.revision_id::text,
    stack.created_at
FROM stackmgr.managers AS managers
CROSS JOIN LATERAL (
    SELECT name, allocation, preset, revision_number, revision_id, created_at
    FROM stackmgr.stacks AS stacks
    WHERE stacks.manager_id = managers.manager_id
        AND stacks.stack_id = %(stack_id)s::uuid
    LIMIT 1
) AS stack
WHERE %(manager_id)s::uuid IS NULL OR managers.manager_id = %(manager_id)s::uuid
LIMIT 1;
