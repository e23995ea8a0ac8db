-- stack_locate: return one stack of any manager, by its id, and its manager's where that is known, from Citus.
-- params:  manager_id uuid or null, stack_id uuid
-- returns: at most one row (external_id, manager_id, name, allocation, preset, revision_number, revision_id,
--          created_at)
-- index:   none (each node reads its stacks)
-- locks:   none
-- called by: commands.revisions.locate
-- why:     Citus cannot look for each manager of a table of its own on another node (0A000).
WITH stack AS MATERIALIZED (
    SELECT
        manager_id,
        name::text,
        allocation::text,
        preset::text,
        revision_number,
        revision_id,
        created_at
    FROM stackmgr.stacks
    WHERE (%(manager_id)s::uuid IS NULL OR manager_id = %(manager_id)s::uuid)
        AND stack_id = %(stack_id)s::uuid
    LIMIT 1
)
SELECT
    managers.external_id::text,
    managers.manager_id::text,
    stack.name,
    stack.allocation,
    stack.preset,
    stack.revision_number,
    stack.revision_id::text,
    stack.created_at
FROM stack
JOIN stackmgr.managers AS managers ON managers.manager_id = stack.manager_id;
