-- stack_count: count the stacks of some managers.
-- params:  manager_ids uuid[]
-- returns: many (manager_id, stacks); none for a manager without a stack
-- index:   stacks_pkey or stacks_page
-- locks:   none
-- called by: operate.managers._with_stacks
SELECT
    manager_id::text,
    count(stack_id) AS stacks
FROM stackmgr.stacks
WHERE manager_id = ANY (%(manager_ids)s::uuid[])
GROUP BY manager_id;
