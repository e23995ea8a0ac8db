-- stack_list_holding: list the stacks of any manager whose current allocation names one of some tokens.
-- params:  addresses text[], manager_id uuid or null, row_limit integer
-- returns: up to row_limit rows (external_id, stack_id, name, allocation)
-- index:   none (every stack is read, or every one of the manager's, for an operator)
-- locks:   none
-- called by: commands.tokens._impact_document, commands.find._by_token
-- why:     an address has a fixed length and cannot be a part of another text of an allocation, so that a
--          search for it is a test, and costs a fifth of parsing the JSON. The page is ordered by one record of
--          both columns: by the columns themselves, the planner would follow the order of the index through the
--          whole table, three times as slow for a rare token. Each parallel worker sorts its own part.
WITH page AS MATERIALIZED (
    SELECT manager_id, stack_id
    FROM stackmgr.stacks
    WHERE EXISTS (
        SELECT FROM unnest(%(addresses)s::text[]) AS wanted (address)
        WHERE strpos(allocation::text, wanted.address) > 0
    )
        AND (%(manager_id)s::uuid IS NULL OR manager_id = %(manager_id)s::uuid)
    ORDER BY (manager_id, stack_id)
    LIMIT %(row_limit)s::integer
)
SELECT
    managers.external_id::text,
    stacks.stack_id::text,
    stacks.name::text,
    stacks.allocation::text
FROM page
JOIN stackmgr.managers AS managers ON managers.manager_id = page.manager_id
JOIN stackmgr.stacks AS stacks ON stacks.manager_id = page.manager_id AND stacks.stack_id = page.stack_id
ORDER BY stacks.manager_id, stacks.stack_id;
