-- stack_search_name: list the stacks of any manager whose current name contains a text, in any case.
-- params:  part text, manager_id uuid or null, row_limit integer
-- returns: up to row_limit rows (external_id, stack_id, name)
-- index:   none (every stack is read, or every one of the manager's, for an operator)
-- locks:   none
-- called by: commands.find._by_name
-- why:     ordered by text for the reasons of stack_list_holding.
WITH page AS MATERIALIZED (
    SELECT manager_id, stack_id, name::text
    FROM stackmgr.stacks
    WHERE strpos(lower(name), lower(%(part)s::text)) > 0
        AND (%(manager_id)s::uuid IS NULL OR manager_id = %(manager_id)s::uuid)
    ORDER BY manager_id::text, stack_id::text
    LIMIT %(row_limit)s::integer
)
SELECT
    managers.external_id::text,
    page.stack_id::text,
    page.name
FROM page
JOIN stackmgr.managers AS managers ON managers.manager_id = page.manager_id
ORDER BY page.manager_id, page.stack_id;
